"""Neural networks: the ops of layers and losses.

activations, softmax           activation functions; softmax and cross entropies
dense, attention               bias, dense layers, dropout; attention with its gradient
conv, pooling                  convolution and pooling of images
spatial                        the same for one to three spatial axes
resize                         resizing of images
conv_geometry                  window geometry that convolutions and pooling share
normalization                  norms, moments, batch, layer and local response normalization

Whatever is above `graph/ops` may import it, and other families of ops.
"""
