//! Spills entries from memory to disk.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::{Batch, Writer};
use crate::error::SpillError;
use crate::pending::Queued;
use crate::spill::Lines;

impl Writer {
    /// Spills everything in memory: first the batch that is being written, unless it was spilled already, then
    /// the backlog.
    pub(super) async fn save(&mut self, running: Option<(&Batch, &mut Option<Lines>)>) {
        self.take();
        self.save_by = Instant::now() + self.shared.options.flush_interval;
        let mut batch = None;
        let mut error = None;
        if let Some((it, saved)) = running {
            batch = Some(it);
            let lines = it.lines();
            if saved.is_none() && !lines.is_empty() {
                match self.append(lines).await {
                    Ok(lines) => *saved = Some(lines),
                    Err(failed) => error = Some(failed),
                }
            }
        }
        let mut strict = VecDeque::new();
        while error.is_none() && !self.backlog.is_empty() {
            error = self.save_some(&mut strict).await.err();
        }
        strict.append(&mut self.backlog);
        self.backlog = strict;
        self.report(batch);
        // Without a configured file, the error of the database says enough.
        let error = error.filter(|error| !matches!(error, SpillError::Nowhere));
        let text: Option<Arc<str>> = error.map(|error| error.to_string().into());
        if self.shared.report.spill(text.clone())
            && let Some(error) = text
        {
            tracing::error!(%error, "cannot spill entries; they stay in memory");
        }
    }

    /// Spills a batch from the front of the backlog. Strict writes move to `strict`.
    async fn save_some(&mut self, strict: &mut VecDeque<Queued>) -> Result<(), SpillError> {
        let (mut lines, mut items, mut entries) = (Lines::default(), Vec::new(), 0);
        while entries < self.shared.options.batch
            && let Some(item) = self.backlog.pop_front()
        {
            match &item {
                Queued::Strict(..) => {
                    strict.push_back(item);
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
                Queued::Flush(_) => {}
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
        // Reported before they leave memory, so that the status always shows them in one place or the other.
        self.report(None);
        self.shared.pending.lock().forget(entries);
        let position = self.spill.lock().appended();
        for item in items {
            if let Queued::Flush(reply) = item {
                self.flushes.push_back((position, reply));
            }
        }
        Ok(())
    }

    async fn append(&self, lines: Lines) -> Result<Lines, SpillError> {
        let appended = self.with_spill(move |spill| spill.append(&lines).map(|()| lines));
        appended.await.unwrap_or(Err(SpillError::Nowhere))
    }
}
