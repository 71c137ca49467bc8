"""The machine: devices, environment, measured ceilings, caches and telemetry."""
