from .fit.loss_fit import fit_joint_laws as fit_joint_laws
from .fit.loss_fit import fit_loss_law as fit_loss_law
from .fit.rate_laws import fit_lr_law as fit_lr_law
from .saving import compute_gain as compute_gain
from .saving import compute_saved as compute_saved
