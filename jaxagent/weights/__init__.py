"""Hugging Face safetensors to parameters and back."""
