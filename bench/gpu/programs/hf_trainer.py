"""A GPT-2 of random weights, fine-tuned by Hugging Face's Trainer with its defaults and two workers, which it forks."""

import sys
import time

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 480

    def __getitem__(self, i):
        words = torch.randint(0, 4096, (128,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": words, "labels": words}


class Print(TrainerCallback):
    def on_step_end(self, *_, **__):
        time.sleep(0.02)

    def on_log(self, _, state, *__, logs=None, **___):
        print("step", state.global_step, repr((logs or {}).get("loss")), flush=True)


size, steps = float(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
width = 64 * max(4, int((size * 2**30 / 16 / 12 / 6) ** 0.5) // 64)  # 6 layers of 12 width² weights, 16 bytes each
model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=width, n_head=width // 64, vocab_size=4096, n_positions=128))
options = TrainingArguments(
    "trained", max_steps=steps, per_device_train_batch_size=8, dataloader_num_workers=2, logging_steps=1,
    logging_strategy="steps", save_strategy="no", report_to=[], disable_tqdm=True, seed=1, full_determinism=False,
)  # fmt: skip
trainer = Trainer(model, options, train_dataset=Tokens(), callbacks=[Print()])
trainer.remove_callback(PrinterCallback)  # prints how long it took
trainer.train()
print("final", repr(sum(p.double().sum().item() for p in model.parameters())), flush=True)
