from .fit.loss_fit import fit_joint_laws as fit_joint_laws
from .fit.loss_fit import fit_loss_law as fit_loss_law
from .fit.lr_law import fit_lr_law as fit_lr_law
from .saved.from_curves import compute_saved as compute_saved
from .saved.from_laws import compute_gain as compute_gain
