"""The optimizer of this rank's pieces, and its step.

| file | what it holds |
|---|---|
| supported_optimizers.py | which optimizers can be sharded, and by which partition rule |
| optimizer_choice.py | `OptimizerChoice`: class and options of the user, checked and translated |
| option_names.py | options in torch's words, from those of Gluon |
| fused_kernel.py | where torch's fused kernels can be used |
| eager_class.py | torch's classes without the marks that load its compiler |
| initial_state.py | the state that an optimizer begins with |
| options_digest.py | what has to be the same on all ranks when they step |
| overlapped_step.py | the step, and the gather of parameters beside it |
| clip.py | the norm of all gradients, and clipping by it |
| process_group_world.py | the world in a program that was written for torch.distributed |
| scaler_guard.py | refuses torch's own GradScaler, which looks at one rank only |

    name or class, options --OptimizerChoice--> torch optimizer over this rank's pieces
    gradients of the pieces --clip--> --overlapped_step--> parameters on all ranks
"""
