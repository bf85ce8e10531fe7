"""Files of arrays, read into device memory: safetensors, and NumPy's .npy and .npz."""

from cudriver.weights.numpy_files import load_npy, load_npz
from cudriver.weights.safetensors import iter_safetensors, load_safetensors

__all__ = ["iter_safetensors", "load_npy", "load_npz", "load_safetensors"]
