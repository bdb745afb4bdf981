"""What a machine without a network needs, in parcels: code, wheels, prepared data, and how to unpack them."""
