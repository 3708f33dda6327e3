"""Penalties in the trainers' own forms: one file a trainer, `core` what they share.

    from invigilator.guard.trainers.core import Judge
    from invigilator.guard.trainers.trl import guarded

    reward_func = guarded([task_reward], Judge(mode="penalty"))

No trainer is imported before its adapter is used. What an adapter cannot mask, it refuses: CannotMaskError.
"""
