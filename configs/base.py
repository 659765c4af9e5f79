"""Every field there is, with its unit, its meaning and its default.

The groups mirror the package's folders. An experiment starts from `get_config()` and changes at
most twenty lines; the command line changes single fields (`--config.rl.samples=16`). A field
that is not here cannot be set. Words in quotes after "one of" are all that a field takes; they and
all types are checked before anything is built, when the config becomes the frozen records of each
layer (`jaxagent/cli/checks.py`).
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
    c.image_encoder = image_encoder()
    c.packing = packing()
    c.warm_start = warm_start()
    c.sft = sft()
    c.rl = rl()
    c.checkpoint = checkpoint()
    c.evaluation = evaluation()
    c.report = report()
    return c


def data() -> ConfigDict:
    """The benchmark, and which of its questions are trained on."""
    c = ConfigDict()
    c.name = "flags"  # one of "flags"
    c.folder = (
        ""  # the built benchmark (`jaxagent kb build`); "" = <workdir>/kb, built when missing
    )
    c.families = ("single", "bridge", "compare")  # questions trained on and evaluated
    c.questions = 0  # training questions kept, drawn with the benchmark's seed; 0 = all
    c.image_side = 64  # pixels of a side of every image, of the base and of a question

    c.flags = ConfigDict()  # jaxagent/data/config.py: what the benchmark is made of
    c.flags.countries = ()  # ids of the countries in it; () = all
    c.flags.base = "openmoji"  # artist of the base's images
    c.flags.query = "twemoji"  # artist of the query images
    c.flags.mix = (
        ("twemoji", "L1", 0.25),
        ("twemoji", "L2", 0.5),
        ("twemoji", "L3", 0.25),
    )  # (artist, level, share) of views
    c.flags.views = 48  # different views of an entity, others in each split; at most 1,000
    c.flags.flag_text = "left_out"  # one of "left_out", "included": the flag described in words
    c.flags.max_words = 18  # words of a passage
    c.flags.val_entities = 36  # entities never asked about in training, for choices
    c.flags.test_entities = 58  # entities never asked about in training, for the results
    c.flags.val_facts = 0.08  # share of the training entities' facts not trained on, for choices
    c.flags.test_facts = 0.16  # the same, for the results
    c.flags.families = ("single", "bridge", "compare")  # kinds of questions made
    c.flags.pairs = (60, 40)  # two-image comparisons a relation: in training, in all other splits
    c.flags.seed = 0  # of splits, wordings, views and pairs
    return c


def retrieval() -> ConfigDict:
    """What the two tools search, and with what."""
    c = ConfigDict()
    c.image_encoder = "flag_encoder"  # the shipped "flag_encoder", or a folder of `kb encoder`
    c.text_encoder = "minilm"  # "minilm", "lexical" (by words), or a sentence encoder's folder
    c.image_index = index()
    c.text_index = index()
    c.measured = 200  # questions a split that the build measures R@k on
    return c


def index() -> ConfigDict:
    """How an index is built and searched (jaxagent/retrieval/hits.py); 0 = from the base's size."""
    c = ConfigDict()
    c.kind = "scann"  # one of "scann", "exact"
    c.brute_force_below = 1000  # rows under which scann compares them all
    c.leaves = 0  # partitions of the tree
    c.leaves_to_search = 0  # partitions read a query
    c.reorder = 0  # proposals that are compared again, exactly
    c.training_threads = 1  # with one, two builds are equal
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
    c.mmagent_r2.choice = "number"  # one of "number" (a policy too small to copy names), "name"
    c.mmagent_r2.batch_size = 5  # K: candidates a batch
    c.mmagent_r2.rej_max = 2  # rejections that bring another batch, for each image
    c.mmagent_r2.passages_per_query = 3  # that a text search shows
    c.mmagent_r2.max_queries = 4  # queries in one text search
    c.mmagent_r2.max_turns = 8  # after which the answer is forced
    c.mmagent_r2.max_tokens = 64  # tokens sampled a turn (1024 for the papers' policies)

    c.promsa = ConfigDict()  # jaxagent/agents/promsa.py
    c.promsa.prompt = "short"  # one of "short", "full"
    c.promsa.image_tool = "image_search_tool"  # its name on the wire (the release's)
    c.promsa.text_tool = "text_search_tool"  # its name on the wire
    c.promsa.image_calls = 3  # calls of the tool in a dialogue; 0 takes it away
    c.promsa.text_calls = 3  # the same (4 in the release)
    c.promsa.pages_per_call = 3  # new ones that an image search summarises
    c.promsa.passages_per_call = 3  # new ones that a text search summarises
    c.promsa.max_turns = 7  # steps, after which the dialogue ends without an answer
    c.promsa.max_tokens = 64  # tokens sampled a step (4096 in the paper)
    c.promsa.arguments = "plain"  # one of "plain", "paper" (which also takes top_k and exclude)
    c.promsa.thinking = "free"  # one of "free", "required" (a step without it loses the format)
    c.summariser = "extractive"  # one of "extractive": what turns results into observations
    return c


def model() -> ConfigDict:
    """The policy."""
    c = ConfigDict()
    c.folder = "shipped"  # in Hugging Face format; "shipped": the method's tiny cold start;
    # "shipped/<method>": another method's; "new": random weights
    c.dtype = "float32"  # of training's compute, one of "float32", "bfloat16"; evaluations and the
    # warm start compute in float32, and parameters stay float32
    c.saved_dtype = "float32"  # of the trained policy's files, one of "float32", "bfloat16"
    c.vision = "frozen"  # the vision tower is one of "frozen", "trained"
    c.remat = False  # recompute each layer in the backward pass instead of keeping its activations

    c.sizes = ConfigDict()  # jaxagent/data/tiny_policy.py: of a "new" policy
    c.sizes.vocab = 2048  # tokens, special ones included
    c.sizes.width = 128  # of the text tower
    c.sizes.layers = 4  # of the text tower
    c.sizes.heads = 4  # query heads
    c.sizes.kv_heads = 2  # key and value heads
    c.sizes.head_size = 32  # of the text tower
    c.sizes.mlp_width = 384  # of the text tower
    c.sizes.tied = True  # one table for embedding and logits
    c.sizes.vision_width = 128  # of the vision tower
    c.sizes.vision_layers = 3  # of the vision tower
    c.sizes.vision_heads = 4  # of the vision tower
    c.sizes.vision_mlp_width = 384  # of the vision tower
    c.sizes.patch = 16  # pixels of a patch's side; 2 x 2 patches make a token
    c.sizes.positions = 16  # learnt positions of the vision tower
    c.sizes.deepstack = (0, 1)  # vision layers whose features enter the first text layers
    c.sizes.image_pixels = 64 * 64  # images are resized to about this area
    c.sizes.context = 4096  # tokens that the policy's files declare
    c.sizes.rope_theta = 5e6  # base of the rotary frequencies
    return c


def sharding() -> ConfigDict:
    """Sizes of the update mesh; -1 on one axis takes the devices that are left.

    Norms and the vision tower lie whole on every device (jaxagent/sharding.py has the table).
    """
    c = ConfigDict()
    c.data = -1  # replicas of the parameters
    c.fsdp = 1  # shards of the text tower's kernels and table along its width, and of the rows
    c.tensor = 1  # shards of the text tower's heads, MLP and vocabulary
    c.context = 1  # shards of the sequence
    return c


def rollout() -> ConfigDict:
    """How dialogues are sampled (jaxagent/rollout/config.py). Ladders are the sizes compiled."""
    c = ConfigDict()
    c.sampling = ConfigDict()
    c.sampling.temperature = 1.0  # divides the logits; 0 = the most likely token
    c.sampling.top_k = 0  # most likely tokens kept; 0 = all
    c.sampling.top_p = 1.0  # the fewest tokens whose probabilities reach this sum are kept
    c.sampling.min_p = 0.0  # tokens kept are at least this fraction as likely as the likeliest
    c.context = 768  # tokens a dialogue may hold, prompt and observations included
    c.slots = 64  # dialogues decoded side by side, on all replicas
    c.replicas = 1  # devices of a host that each hold the parameters and a share of the slots
    c.decode_steps = (1, 8)  # tokens decoded a device call
    c.rows = (8, 32)  # dialogues in a device call, for each replica
    c.chunk_lengths = (32, 64, 128, 256)  # tokens of an appended chunk
    c.image_rows = (1, 16, 64)  # images encoded together
    c.kernel = "row"  # how attention reads the cache: "row" on CPUs, "batch" on accelerators
    c.span_step = 128  # the "batch" kernel reads this many cache slots, or a multiple
    c.deterministic = True  # gather tool answers at fixed points of the schedule
    c.tool_seconds = 30.0  # deadline of a batch of tool calls
    c.tool_retries = 1  # further tries of a single call that raises
    c.max_failure_rate = 0.05  # share of failed tool calls that stops the run
    c.feature_bytes = 2**30  # bound of the host cache of image features
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
    c.promsa.max_calls = 6  # H_max, both budgets of method.promsa together (7 in the release)
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
    return c


def optimizer() -> ConfigDict:
    """AdamW (jaxagent/training/optimizer.py)."""
    c = ConfigDict()
    c.learning_rate = 1e-4  # at its peak
    c.schedule = "constant"  # after warm-up, one of "constant", "cosine", "linear" (to 0)
    c.warmup = 0.05  # share of the updates that raise the rate linearly from 0
    c.weight_decay = 0.0  # decoupled; norms and biases excluded
    c.beta1 = 0.9  # decay of the first moment
    c.beta2 = 0.95  # decay of the second moment
    c.epsilon = 1e-8  # added to the second moment's root
    c.clip_norm = 1.0  # global norm that gradients are cut to
    return c


def image_encoder() -> ConfigDict:
    """The training of the retriever's image encoder (jaxagent/training/image_encoder.py)."""
    c = ConfigDict()
    c.steps = 0  # 0 = none
    c.batch = 96  # entities a step
    c.views = 24  # views of each of the base's drawings, rendered once
    c.levels = ("L1", "L2")  # take turns among the views
    c.learning_rate = 2e-3  # at its peak
    c.temperature = 0.07  # cosines are divided by it
    c.widths = (16, 32, 48)  # channels before and after each stage
    c.out_width = 64  # numbers in a vector
    c.measured_views = 4  # views a drawing that recall is measured on
    c.processes = 2  # that render views
    return c


def packing() -> ConfigDict:
    """How samples are packed into rows (jaxagent/training/batch.py): memory, never the result."""
    c = ConfigDict()
    c.row_lengths = (320, 640, 960)  # tokens of a row; the shortest that hold a batch. Two looks
    # fit one of 320, two whole dialogues one of 640, and a group of eight a micro-batch of those
    c.call_tokens = 2880  # tokens of a micro-batch with padding; more where each device needs a row
    c.image_tokens = 3072  # tokens of the distinct images of a micro-batch; a dialogue's must fit
    c.chunk = 160  # scored tokens of a row whose logits exist at a time
    return c


def warm_start() -> ConfigDict:
    """The warm start of a new policy's vision tower (jaxagent/training/warm_start.py)."""
    c = ConfigDict()
    c.steps = 0  # 0 = none
    c.batch = 96  # entities a step
    c.learning_rate = 1.5e-3  # at its peak
    c.views = 32  # different views of an entity by each artist
    c.levels = ("L1", "L2", "L3", "L2")  # take turns among the views
    c.query_share = 0.5  # of the training entities' views that the query artist drew
    c.twisted = 0.5  # share of pairs that show a flag that exists nowhere, the same in both images
    return c


def sft() -> ConfigDict:
    """Supervised training on traces of the scripted expert (jaxagent/training/sft.py)."""
    c = ConfigDict()
    c.steps = 0  # updates; 0 = skip supervised training
    c.minutes = 0.0  # stop after this many minutes of training; 0 = by steps alone
    c.batch = 16  # dialogues an update
    c.verdict_weight = 1.0  # of the same / different target after each candidate image
    c.look_steps = 0  # updates at the start that look at more traces, up to their first choice
    c.look_batches = 3  # batches of further traces that such an update looks at
    c.traces = 4000  # demonstrations asked for; a share is left out as not usable
    c.fiction = 0.9  # share of single-hop traces told in a fictional world
    c.reworded = 1.0  # share of those that ask in words that mean nothing
    c.single = 0.8  # share of single-hop questions
    c.max_tokens = 640  # longer traces are left out; the longest are of two images
    return c


def rl() -> ConfigDict:
    """Policy optimisation (jaxagent/training/rl.py)."""
    c = ConfigDict()
    c.steps = 20  # rollouts, each followed by its updates; 0 = no policy optimisation
    c.minutes = 0.0  # stop after this many minutes of training; 0 = by steps alone
    c.questions = 8  # questions a step
    c.samples = 8  # dialogues a question: the group
    c.epochs = 1  # passes over each rollout
    c.minibatches = 1  # updates a pass; groups stay whole
    c.shuffle = "no"  # one of "no", "advantages" (a control: permuted over the batch)
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
    c.splits = ("unseen_question", "unseen_entity")  # or "train", or these with "val_" before
    c.questions = (
        200  # over all splits, drawn evenly over entities with the benchmark's seed; 0 = all
    )
    c.samples = 1  # dialogues a question
    c.temperature = 0.0  # 0 = greedy
    c.train_temperature = 0.0  # the same for questions of split "train"; 1 = as they are trained on
    c.when = ("before", "after")  # training: any of "before", "after"
    return c


def report() -> ConfigDict:
    """The page a run leaves behind."""
    c = ConfigDict()
    c.dialogues = 120  # dialogues one can read in it
    c.image_side = 96  # pixels of an embedded image
    return c
