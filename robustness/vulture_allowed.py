"""What vulture takes for unused and is not, by name; tests/house/test_dead_code.py reads it, and
finds a name that is no longer needed here.

    vulture ssl_vit robustness/vulture_allowed.py
"""

# Python calls them: attributes of `ssl_vit` that are imported when they are asked for
_.__getattr__
_.__dir__

# Jupyter calls it for what a cell shows
_._repr_html_

# The loop calls a callback's methods by name (training.loop.Callbacks)
_.on_step
_.on_note
_.on_warning

# http.server's names for what a handler answers and says of itself; io's for a raw stream
_.do_GET
_.log_message
_.server_version
_.sys_version
_.writable

# Set on objects of other libraries, which read them: DataLoader, its workers' queues, a fused
# optimiser, Accelerate, DeepSpeed, and a module that becomes one of another class
_.timeout
_._on_queue_feeder_error
_.found_inf
_.gradient_accumulation_steps
_.cdb
_.__class__

# timm's registry reads it from the module of a model
_.default_cfgs

# torch.autograd.Function gives it
ctx

# Fields of a page's blocks that its template reads (pages/assets/page.html.j2)
_.alt

# What the templates of a report alone read (lab/reports/templates/)
_.says
_.excludes_zero
_.other_test

# Makes every heartbeat another text, by which a new one is told from an old one
_.beats

# A field that objective=joint reads by the name of its part
mpp

# Pydantic reads it
_.model_config

# Fields of an export's config.json, which is read as a mapping (config/export_files.py)
_.model_type
_.global_pool
_.model_args
_.pretrained_cfg
_.label_names

# Fields that dataclasses.asdict reads: of a plan's record, of what sbatch is given
_.least
_.account
_.constraint
_.qos

# Fields of an estimate, which is printed as a mapping (lab/plan_tool.py)
_.image_bytes
_.price_per_hour
_.tensor_bytes
_.untimed

# Jinja's, of an environment
_.globals
