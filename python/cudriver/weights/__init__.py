"""Files of arrays, into device memory and out of it: safetensors, and NumPy's .npy and .npz."""

from cudriver.weights.numpy_files import load_npy, load_npz
from cudriver.weights.safetensors import iter_safetensors, load_safetensors
from cudriver.weights.saving import save_safetensors

__all__ = ["iter_safetensors", "load_npy", "load_npz", "load_safetensors", "save_safetensors"]
