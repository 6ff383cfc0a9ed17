"""Jobs: one description of processes on many nodes, compiled to a plan, and started here, by Slurm or by Ray.

    plan = compile_plan(config.job, facts)        # every contradiction at once; needs neither torch nor a scheduler
    backend("slurm").preview(plan)                # the script that would be submitted

Backends only start node runners (`areal node`), one per role and node; runners start and watch everything else.
"""
