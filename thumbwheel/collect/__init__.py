"""Records in, records out: joining late feedback, noise rules, redaction, file formats. Pure, but for reading files."""
