//! Bringing what is in memory to the disk.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::{Batch, Writer};
use crate::error::SpillError;
use crate::pending::Queued;
use crate::spill::Lines;

impl Writer {
    /// Spills what is in memory: first a batch that is on its way, if it was not, then the rest.
    pub(super) async fn save(&mut self, on_the_way: Option<(&Batch, &mut Option<Lines>)>) {
        self.take();
        self.save_by = Instant::now() + self.shared.options.flush_interval;
        let mut batch = None;
        let mut error = None;
        if let Some((it, saved)) = on_the_way {
            batch = Some(it);
            let lines = it.lines();
            if saved.is_none() && !lines.is_empty() {
                match self.append(lines).await {
                    Ok(lines) => *saved = Some(lines),
                    Err(said) => error = Some(said),
                }
            }
        }
        let mut together = VecDeque::new();
        while error.is_none() && !self.backlog.is_empty() {
            error = self.save_some(&mut together).await.err();
        }
        together.append(&mut self.backlog);
        self.backlog = together;
        self.tell(batch);
        // Where no file was named, what the database says is enough.
        let error = error.filter(|error| !matches!(error, SpillError::Nowhere));
        let text: Option<Arc<str>> = error.map(|error| error.to_string().into());
        if self.shared.told.spill(text.clone())
            && let Some(error) = text
        {
            tracing::error!(%error, "entries that the ledger does not take stay in memory");
        }
    }

    /// Spills entries from the front of the backlog. What somebody waits for moves to `together`.
    async fn save_some(&mut self, together: &mut VecDeque<Queued>) -> Result<(), SpillError> {
        let (mut lines, mut items, mut entries) = (Lines::default(), Vec::new(), 0);
        while entries < self.shared.options.batch
            && let Some(item) = self.backlog.pop_front()
        {
            match &item {
                Queued::BatchDecision(..) => {
                    together.push_back(item);
                    continue;
                }
                Queued::One(entry) => {
                    lines.push(entry);
                    entries += 1;
                }
                Queued::Note(note) => {
                    lines.push_note(note);
                    entries += 1;
                }
                Queued::Mark(_) => {}
            }
            items.push(item);
        }
        if !lines.is_empty()
            && let Err(error) = self.append(lines).await
        {
            for item in items.into_iter().rev() {
                self.backlog.push_front(item);
            }
            return Err(error);
        }
        // Told before they leave the memory, so that they are always seen in one place or the other.
        self.tell(None);
        self.shared.pending.lock().forget(entries);
        let position = self.spill.lock().appended();
        for item in items {
            if let Queued::Mark(reply) = item {
                self.marks.push_back((position, reply));
            }
        }
        Ok(())
    }

    async fn append(&self, lines: Lines) -> Result<Lines, SpillError> {
        let appended = self.with_spill(move |spill| spill.append(&lines).map(|()| lines));
        appended.await.unwrap_or(Err(SpillError::Nowhere))
    }
}
