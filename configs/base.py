"""Every field there is, with its unit, its meaning and its default.

The groups mirror the package's folders. An experiment starts from `get_config()` and changes at
most twenty lines; the command line changes single fields (`--config.rollout.samples=16`). A field
that is not here cannot be set. Words in quotes after "one of" are all that a field takes; they and
all types are checked when the config becomes the frozen records of each layer
(`jaxagent/cli/build.py`).
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """MMAgent-R2 with GRPO on the embedded flags benchmark, sized for two CPU cores."""
    c = ConfigDict()
    c.seed = 0  # of sampling, question order and initialisation; the benchmark has its own
    c.data = data()
    c.retrieval = retrieval()
    c.method = method()
    c.model = model()
    c.sharding = sharding()
    c.rollout = rollout()
    c.scoring = scoring()
    c.algorithm = algorithm()
    c.optimizer = optimizer()
    c.sft = sft()
    c.rl = rl()
    c.checkpoint = checkpoint()
    c.evaluation = evaluation()
    c.report = report()
    return c


def data() -> ConfigDict:
    """Which questions are trained on."""
    c = ConfigDict()
    c.name = "flags"  # one of "flags"
    c.folder = (
        ""  # the built benchmark (`jaxagent kb build`); "" = <workdir>/kb, built when missing
    )
    c.families = ("single", "bridge", "compare")  # question families trained on and evaluated
    c.questions = 0  # training questions kept, drawn with the seed; 0 = all
    return c


def retrieval() -> ConfigDict:
    """What the two tools search, and with what."""
    c = ConfigDict()
    c.index = "scann"  # one of "scann", "exact"; "exact" wherever scann has no wheel
    c.text_encoder = "minilm"  # one of "minilm", "lexical"
    c.image_encoder = "flag_encoder"  # one of "flag_encoder", "policy" (the policy's vision tower)
    c.flag_section = False  # let text search see the section that describes the flag in words
    return c


def method() -> ConfigDict:
    """How the agent talks: the protocol, its budgets, its prompt. Only the named group is read."""
    c = ConfigDict()
    c.name = "mmagent_r2"  # one of "mmagent_r2", "promsa"

    c.mmagent_r2 = (
        ConfigDict()
    )  # jaxagent/agents/mmagent_r2.py; the paper's values where it has one
    c.mmagent_r2.variant = "both"  # one of "both", "rerank_only", "neither": the paper's ablation
    c.mmagent_r2.prompt = "short"  # one of "short" (a policy that learnt the wire form), "full"
    c.mmagent_r2.batch_size = 5  # K: candidates a batch
    c.mmagent_r2.rej_max = 2  # rejections that bring another batch, for each image
    c.mmagent_r2.passages_per_query = 3
    c.mmagent_r2.max_queries = 4  # queries in one text search
    c.mmagent_r2.max_turns = 8  # after which the answer is forced
    c.mmagent_r2.max_tokens = 64  # tokens sampled a turn (1024 for the papers' policies)

    c.promsa = ConfigDict()  # jaxagent/agents/promsa.py
    c.promsa.prompt = "short"  # one of "short", "full"
    c.promsa.image_tool = "image_search_tool"  # the tools' names on the wire (the release's)
    c.promsa.text_tool = "text_search_tool"
    c.promsa.image_calls = 3  # calls of each tool in a dialogue; 0 takes the tool away
    c.promsa.text_calls = 3
    c.promsa.pages_per_call = 3
    c.promsa.passages_per_call = 3
    c.promsa.max_turns = 7
    c.promsa.max_tokens = 64  # tokens sampled a step (4096 in the paper)
    c.promsa.arguments = "plain"  # one of "plain", "paper" (which also takes top_k and exclude)
    c.promsa.thinking = "free"  # one of "free", "required" (a step without it loses the format)
    c.summariser = "extractive"  # one of "extractive": what turns results into observations
    return c


def model() -> ConfigDict:
    """The policy."""
    c = ConfigDict()
    c.folder = "shipped"  # a folder in Hugging Face format, or "shipped": the tiny cold start
    c.dtype = "float32"  # of the parameters and of compute: one of "float32", "bfloat16"
    c.image_size = (
        64  # query and base images are resized to this square side, pixels; 0 = as they are
    )
    c.freeze_vision = True  # no gradient into the vision tower, its merger and its deepstack
    c.remat = True  # recompute each layer in the backward pass instead of keeping its activations
    return c


def sharding() -> ConfigDict:
    """Sizes of the update mesh; -1 on one axis takes the devices that are left."""
    c = ConfigDict()
    c.data = -1  # replicas of the parameters, over DCN first
    c.fsdp = 1  # shards of each parameter along its widest dimension
    c.tensor = 1  # shards of heads and MLP
    c.context = 1  # shards of the sequence
    return c


def rollout() -> ConfigDict:
    """How dialogues are sampled."""
    c = ConfigDict()
    c.questions = 8  # questions a step
    c.samples = 8  # dialogues a question: the group
    c.slots = 64  # dialogues decoded side by side
    c.context = 768  # tokens a dialogue may hold, prompt and observations included
    c.max_tokens = 96  # tokens sampled a turn
    c.temperature = 1.0  # of sampling; 0 = greedy
    c.top_p = 1.0  # nucleus mass kept
    c.top_k = 0  # tokens kept; 0 = all
    c.prefill_lengths = (32, 64, 128, 256, 512)  # chunk lengths that get compiled, ascending
    c.decode_steps = (1, 8)  # tokens decoded a device call: one of these is chosen each time
    c.deterministic = True  # order tool batches by dialogue instead of by arrival
    c.tool_seconds = 30.0  # deadline of a tool call
    c.max_failure_rate = 0.05  # share of failed tool calls that stops the run
    return c


def scoring() -> ConfigDict:
    """What the terms of a method's reward weigh (`jaxagent/scoring/rewards.py`)."""
    c = ConfigDict()
    c.mmagent_r2 = ConfigDict()
    c.mmagent_r2.reject = 0.2  # delta: a right rejection, where a right rerank earns 1
    c.mmagent_r2.format = 1.0  # a dialogue whose every turn kept the syntax
    c.promsa = ConfigDict()
    c.promsa.format = 0.5  # an answered dialogue without a fault
    c.promsa.cost = 0.5  # lambda: the cost of `max_calls` calls and more
    c.promsa.max_calls = 6  # H_max (7 in the public release)
    return c


def algorithm() -> ConfigDict:
    """One row of the table in `jaxagent/algorithms/table.py`, and what is given in its place.

    An empty word or tuple leaves the algorithm's own.
    """
    c = ConfigDict()
    c.name = "grpo"  # one of "grpo", "gspo", "tn_gspo", "tn_gspo_release"
    c.clip = ()  # (low, high): ratios under 1 - low or over 1 + high earn no further gradient
    c.horizon = ()  # (c, alpha, offset) of tn_gspo: lengths grow by 1 + c (offset + calls) ** alpha
    c.advantage = ""  # one of "centred", "standardised"
    c.aggregation = ""  # one of "token_mean", "sequence_mean", "group_token_mean"
    c.old = ""  # log-probs a ratio starts from: one of "sampler", "trainer", "current"
    c.shuffle = "no"  # one of "no", "advantages" (a control: permuted over the batch)
    return c


def optimizer() -> ConfigDict:
    """AdamW."""
    c = ConfigDict()
    c.learning_rate = 1e-4  # at its peak
    c.schedule = "constant"  # after warm-up, one of "constant", "cosine", "linear" (to 0)
    c.warmup = 0.05  # share of the updates that raise the rate linearly from 0
    c.weight_decay = 0.0  # decoupled; norms and biases excluded
    c.beta1 = 0.9
    c.beta2 = 0.95
    c.clip_norm = 1.0  # global norm that gradients are cut to
    return c


def sft() -> ConfigDict:
    """Supervised training on traces of the scripted expert."""
    c = ConfigDict()
    c.steps = 0  # updates; 0 = skip supervised training
    c.batch = 64  # dialogues an update
    c.minutes = 0.0  # stop after this many minutes of training; 0 = by steps alone
    c.verdict_weight = 1.0  # weight of the same / different target after each candidate image
    c.reject_rate = 0.3  # share of traces whose first batch lacks the true entity
    return c


def rl() -> ConfigDict:
    """The outer loop of policy optimisation."""
    c = ConfigDict()
    c.steps = 20  # rollouts, each followed by its updates; 0 = no policy optimisation
    c.minutes = 0.0  # stop after this many minutes of training; 0 = by steps alone
    c.epochs = 2  # passes over each rollout
    c.minibatches = 1  # updates a pass
    c.rows = 4  # packed rows a device call of the update: memory, never the result
    c.row_length = 1024  # tokens a packed row
    return c


def checkpoint() -> ConfigDict:
    """What is kept of a training."""
    c = ConfigDict()
    c.every = 10  # steps between saves; the last step is always saved
    c.keep = 2  # checkpoints that stay on disk
    return c


def evaluation() -> ConfigDict:
    """The protocol over a split."""
    c = ConfigDict()
    c.splits = ("unseen_question", "unseen_entity")  # or "val_unseen_question", "val_unseen_entity"
    c.questions = (
        200  # over all splits, drawn evenly over entities with the benchmark's seed; 0 = all
    )
    c.samples = 1  # dialogues a question
    c.temperature = 0.0  # 0 = greedy
    c.every = 0  # rl steps between evaluations while training; 0 = only before and after
    return c


def report() -> ConfigDict:
    """The page a run leaves behind."""
    c = ConfigDict()
    c.dialogues = 120  # dialogues one can read in it
    c.image_side = 96  # pixels of an embedded image
    return c
