"""From the sources of a kernel to a repository on a Hub: scaffold, compile, own tests, check, bench, publish."""
