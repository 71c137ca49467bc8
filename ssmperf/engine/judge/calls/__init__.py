"""What a signature promises beside plain calls: key heads, packing, options, and gradients of any kind."""
