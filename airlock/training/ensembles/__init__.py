"""Many models trained together: stacked on one device, in chunks, on a Ray cluster; and brought into one order."""
