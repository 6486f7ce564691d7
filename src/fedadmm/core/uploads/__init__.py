"""What happens to an upload between a client's update and the sum: clip, compress, noise.

    client   x = message + rest;   y = T(x);   send y;   rest <- x - y
    server   total = sum a_i y_i + noise

`rest` is what the client has and the server has not.  For a method whose messages are increments
of something that the server tracks the mean of, it is u_i - sent_i: the server's mean is then
exactly the mean of the sent_i, whatever was cut away, and what was cut away is in the next
difference.  For a method that sends fresh moves it is ordinary error feedback.  There a clip is
meant to lose what lies outside: rest <- clip(x) - y, or else it would grow without bound.

No stage makes a vector longer, so that a clipped upload stays clipped whatever compresses it.
"""

from fedadmm.core.uploads.pipeline import Uploads as Uploads
from fedadmm.core.uploads.stages import AdaptiveClip as AdaptiveClip
from fedadmm.core.uploads.stages import BFloat16 as BFloat16
from fedadmm.core.uploads.stages import Clip as Clip
from fedadmm.core.uploads.stages import GaussianNoise as GaussianNoise
from fedadmm.core.uploads.stages import Quantise as Quantise
from fedadmm.core.uploads.stages import RandomK as RandomK
from fedadmm.core.uploads.stages import TopK as TopK
from fedadmm.core.uploads.stages import UploadStage as UploadStage
