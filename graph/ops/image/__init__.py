"""Images as tensors `[height, width, channels]`, or batches of them.

geometry, boxes   flips, crops, resizing; bounding boxes, non-maximum suppression
colour, quality   colour spaces and adjustments; PSNR, SSIM, total variation
patches           sliding windows as rows
files             JPEG, PNG, GIF and BMP
"""
