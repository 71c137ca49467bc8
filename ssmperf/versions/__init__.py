"""Where `ssmperf ab` of any version starts a side of a comparison. The code moved; this name stays."""
