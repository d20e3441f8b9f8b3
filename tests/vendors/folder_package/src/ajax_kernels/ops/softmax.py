def softmax(self, dim, half_to_float=False):
    exp = (self - self.amax(dim, keepdim=True)).exp()
    return exp / exp.sum(dim, keepdim=True)
