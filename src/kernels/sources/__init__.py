"""Where kernels are found: folders of the user first, then Hubs, mirrors and folders of repositories, in order."""
