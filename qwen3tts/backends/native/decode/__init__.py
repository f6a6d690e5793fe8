"""The decode core: a frame on the device, by kernels that are launched as one graph. See docs/decode.md."""
