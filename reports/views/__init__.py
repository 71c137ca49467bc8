"""Turn rows into what pages and formats show: matrices, charts, maps, colours and texts."""
