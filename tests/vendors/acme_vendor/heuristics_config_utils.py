"""Parameters that Acme computes from the arguments of a launch."""


def even_k(args):
    return args["K"] % args["BLOCK_K"] == 0


HEURISTICS_CONFIGS = {"mm": {"EVEN_K": even_k}}
