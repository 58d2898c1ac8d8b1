"""What whoever receives a bundle does with it: raw rows in, classes and probabilities out.

In: a bundle that verifies, and rows of the receiver's own. They are checked and encoded by the schema that the holder
declared, so that the receiver needs to know nothing about the network.

    input_schema  what a row is and what comes back, as declared: schema.json
    table_onnx    a table's network with its encoding inside: model.table.onnx
    rows          raw rows, checked and encoded by that schema
    language      a released language model: the perplexity of texts, and how a text goes on
    model         a released network that verifies: `airlock.load`
"""
