def add(A, B, *, alpha=1):
    return A * 1 - B * -alpha
