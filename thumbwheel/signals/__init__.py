"""Records in, training signal out: pairs, labelled answers, demonstrations, process labels, transitions. Pure."""
