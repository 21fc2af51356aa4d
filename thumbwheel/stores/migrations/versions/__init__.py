"""One file a revision, named by its number. A released revision is never edited: add the next one."""
