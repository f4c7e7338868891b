"""What a run costs, counted from its recipe. No torch here."""

from .images import images_seen as images_seen
from .images import total_exaflop as total_exaflop
from .images import training_images as training_images
from .memory import activation_bytes as activation_bytes
from .memory import block_bytes as block_bytes
from .memory import fitting_images as fitting_images
from .memory import memory_bytes as memory_bytes
from .work import block_multiply_adds as block_multiply_adds
from .work import computes_wanted as computes_wanted
from .work import encoder_multiply_adds as encoder_multiply_adds
from .work import encoder_parameters as encoder_parameters
from .work import exaflop as exaflop
from .work import head_outputs as head_outputs
from .work import momentum_parameters as momentum_parameters
from .work import multiply_adds as multiply_adds
from .work import parameters as parameters
from .work import patch_inputs as patch_inputs
from .work import patches as patches
from .work import plain_block_parameters as plain_block_parameters
from .work import tokens as tokens
from .work import trained_objectives as trained_objectives
from .work import unwanted_multiply_adds as unwanted_multiply_adds
