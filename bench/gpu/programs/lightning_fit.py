"""A model trained by PyTorch Lightning's Trainer, with dropout and two forked workers."""

import sys
import time

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self):
        return 960

    def __getitem__(self, i):
        return torch.randn(1024, generator=torch.Generator().manual_seed(i))


class Model(pl.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(1024, width), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(width, 1024)
        )

    def training_step(self, batch, _):
        return ((self.net(batch) - batch) ** 2).mean()

    def on_train_batch_end(self, outputs, *_):
        print("step", self.global_step, f"{outputs['loss'].item():.9f}", flush=True)
        time.sleep(0.04)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-4)


size, steps = float(sys.argv[1]), int(sys.argv[2])
pl.seed_everything(0)
model = Model(int(size * 2**30 / 16 / 2048))
trainer = pl.Trainer(
    max_steps=steps, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, plugins=[LightningEnvironment()],  # otherwise it asks MPI, if that is installed
)  # fmt: skip
trainer.fit(model, DataLoader(Noise(), batch_size=32, shuffle=True, num_workers=2))
print("final", repr(sum(p.double().sum().item() for p in model.parameters())), flush=True)
