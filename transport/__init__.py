"""Moving messages (`link`) and tensors (`tensors`) between processes."""
