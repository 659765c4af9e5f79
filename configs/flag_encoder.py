"""The retriever's image encoder that ships with the package, trained on the base's own drawings.

    jaxagent kb encoder --config flag_encoder --workdir work/flag_encoder

Its training never reads a drawing by the artist of the query images; its recall is measured on
them afterwards. Its card beside the weights (`jaxagent/pretrained/flag_encoder/card.json`) holds
the time it took and that recall.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.image_encoder.steps = 300
    return c
