"""Fine-tune a model of transformers with LoRA: only the adapter is trained and travels.

The model is tiny and random here, in place of `AutoModelForSequenceClassification.from_pretrained`.
"""

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

import fedadmm as fa

WORDS, LENGTH, CLIENTS = 50, 12, 4
torch.manual_seed(0)
config = BertConfig(
    vocab_size=WORDS,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    num_labels=2,
)
adapter = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
model = get_peft_model(BertForSequenceClassification(config), adapter)


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """Made-up sentences as a tokenizer returns them; each topic has words of its own."""
    topics = torch.randint(0, 2, (count,))
    words = torch.randint(0, WORDS // 2, (count, LENGTH)) + topics[:, None] * (WORDS // 2)
    rows = zip(words, topics, strict=True)
    return [{"input_ids": w, "attention_mask": w >= 0, "labels": topic} for w, topic in rows]


def accuracy(module: torch.nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    right = module(**batch).logits.argmax(-1) == batch["labels"]
    return {"test_accuracy": right.float().mean()}


clients = [
    fa.BatchObjective(
        model, fa.adapters.hugging_face_loss, DataLoader(sentences(64), batch_size=16, shuffle=True)
    )
    for _ in range(CLIENTS)
]
problem = fa.Problem(
    clients,
    test=fa.BatchMetrics(model, accuracy, DataLoader(sentences(100), batch_size=50)),
    initial=clients[0].flat.vector.clone(),
)
solver = fa.SGD(lr=0.5, batch_size=1)  # one batch a step
result = fa.simulate(fa.FedADMM(rho=0.05), problem, 12, solver=solver, stop=fa.Epochs(2))
total = sum(p.numel() for p in model.parameters())
print(f"{problem.num_parameters:,} of {total:,} parameters travel")
print(f"accuracy {result.history[-1]['metrics']['test_accuracy']:.1%}")
clients[0].flat.load(result.params)  # the model has the result now
model.save_pretrained("adapter")
