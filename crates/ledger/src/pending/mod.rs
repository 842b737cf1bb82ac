//! Recorded entries that the writer has not taken yet: a list in order, and an index of uses that later uses
//! can be merged into.
//!
//! The lock is held only to merge a use into a pending use, or to add one entry. Merging a use allocates
//! nothing.

mod uses;

use std::mem;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use tokio::sync::oneshot;
use tollgate_core::Time;

use crate::entry::{Entry, EntryId, Kind, Note, check_amount};
use crate::error::{Full, LedgerError};

pub(crate) use uses::Use;
pub use uses::{NewUse, UseOf};

/// The answer to a caller that waits for a write: whether all entries were new.
pub(crate) type Reply = oneshot::Sender<Result<bool, LedgerError>>;

/// One item of the queue.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all are the large variant, and a box would cost each an allocation"
)]
#[derive(Debug)]
pub(crate) enum Queued {
    /// An entry that no caller waits for.
    One(Entry),
    /// A note that no caller waits for.
    Note(Note),
    /// Entries that a caller waits for. They are written in one transaction, or not at all.
    Strict(Vec<Entry>, Reply),
    /// A caller waits until everything before this item is written.
    Flush(Reply),
}

impl Queued {
    pub(crate) fn entries(&self) -> &[Entry] {
        match self {
            Queued::One(entry) => std::slice::from_ref(entry),
            Queued::Strict(entries, _) => entries,
            Queued::Note(_) | Queued::Flush(_) => &[],
        }
    }

    pub(crate) fn note(&self) -> Option<&Note> {
        match self {
            Queued::Note(note) => Some(note),
            _ => None,
        }
    }

    /// Counts entries and notes.
    pub(crate) fn count(&self) -> usize {
        self.entries().len() + usize::from(self.note().is_some())
    }

    /// Returns when the first entry or note was recorded.
    pub(crate) fn at(&self) -> Option<Time> {
        let entry = self.entries().first().map(|it| it.at);
        entry.or_else(|| self.note().map(|it| it.at))
    }
}

/// The stored form of an item in the queue. Uses have a compact form.
#[derive(Debug)]
pub(crate) enum Item {
    Use(Use),
    Other(Box<Queued>),
}

impl From<Item> for Queued {
    fn from(item: Item) -> Queued {
        match item {
            Item::Use(it) => Queued::One(it.into()),
            Item::Other(it) => *it,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pending {
    items: Vec<Item>,
    /// The positions in `items` of uses that later uses can be merged into.
    index: HashTable<usize>,
    hasher: RandomState,
    /// How many entries and notes the items have.
    entries: usize,
    /// How many entries and notes the writer has taken and still has in memory.
    taken: usize,
    max_queued: usize,
    batch: usize,
    /// Whether the writer was woken for a full batch since it last took the items.
    is_woken: bool,
    is_closed: bool,
}

impl Pending {
    pub(crate) fn new(max_queued: usize, batch: usize) -> Pending {
        Pending {
            items: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::default(),
            entries: 0,
            taken: 0,
            max_queued,
            batch,
            is_woken: false,
            is_closed: false,
        }
    }

    /// Queues an entry, or merges it into a waiting use. Returns whether to wake the writer now.
    pub(crate) fn record(&mut self, entry: Entry) -> Result<bool, Full> {
        let is_plain = entry.kind == Kind::Use
            && entry.idempotency_key.is_none()
            && entry.hold.is_none()
            && entry.who.is_empty()
            && entry.why.is_empty();
        if is_plain {
            let of = UseOf::of(&entry);
            return self.record_use(&of, entry.amount, entry.count, entry.at, || entry.id);
        }
        self.is_open()?;
        entry.check()?;
        self.has_room(1)?;
        self.push(Queued::One(entry));
        Ok(self.grown())
    }

    /// Merges a use into a waiting one, or queues it. Returns whether to wake the writer now.
    pub(crate) fn record_use(
        &mut self,
        of: &UseOf<'_>,
        amount: i64,
        count: u32,
        at: Time,
        id: impl FnOnce() -> EntryId,
    ) -> Result<bool, Full> {
        self.is_open()?;
        check_amount(amount)?;
        let hash = of.hash(&self.hasher);
        let items = &mut self.items;
        let is_same = |place: &usize| use_at(items, *place).is_some_and(|it| it.is_of(of));
        let known = self.index.find(hash, is_same).copied();
        if let Some(Item::Use(waiting)) = known.and_then(|place| items.get_mut(place))
            && waiting.add(amount, count)
        {
            return Ok(false);
        }
        self.has_room(1)?;
        let new = Use::new(of, (amount, count), at, id)?;
        self.index_next(hash, of);
        self.items.push(Item::Use(new));
        Ok(self.grown())
    }

    /// Queues several uses, all or none. Returns whether to wake the writer now.
    pub(crate) fn record_uses(
        &mut self,
        uses: &[NewUse<'_>],
        mut id: impl FnMut() -> EntryId,
    ) -> Result<bool, Full> {
        if uses.len() > 1 {
            self.has_room_for(uses)?;
        }
        let mut is_due = false;
        for it in uses {
            // If there are several uses, this does not fail: `has_room_for` has checked all of them.
            is_due |= self.record_use(&it.of, it.amount, it.count, it.at, &mut id)?;
        }
        Ok(is_due)
    }

    /// Checks that all of `uses` can be queued: either all of them can be merged into waiting uses, or there
    /// is room for all of them.
    fn has_room_for(&self, uses: &[NewUse<'_>]) -> Result<(), Full> {
        self.is_open()?;
        let (mut amount, mut count) = (0_i64, 0_u32);
        for it in uses {
            check_amount(it.amount)?;
            amount = amount.saturating_add(it.amount);
            count = count.saturating_add(it.count);
        }
        let waiting = |of: &UseOf<'_>| {
            let is_same =
                |place: &usize| use_at(&self.items, *place).is_some_and(|it| it.is_of(of));
            let place = self.index.find(of.hash(&self.hasher), is_same)?;
            // Several of the uses may be merged into this one, so the sum of all must fit.
            use_at(&self.items, *place).filter(|it| it.fits(amount, count))
        };
        let mut is_merged = true;
        for it in uses {
            if waiting(&it.of).is_none() {
                it.of.check()?;
                is_merged = false;
            }
        }
        match is_merged {
            true => Ok(()),
            false => self.has_room(uses.len()),
        }
    }

    /// Queues a note. Returns whether to wake the writer now.
    pub(crate) fn note(&mut self, note: Note) -> Result<bool, Full> {
        self.is_open()?;
        note.check()?;
        self.has_room(1)?;
        self.push(Queued::Note(note));
        Ok(self.grown())
    }

    /// Queues entries that a caller waits for.
    pub(crate) fn strict(&mut self, entries: Vec<Entry>, reply: Reply) -> Result<(), Full> {
        self.is_open()?;
        entries.iter().try_for_each(Entry::check)?;
        self.has_room(entries.len())?;
        self.entries += entries.len();
        self.push(Queued::Strict(entries, reply));
        Ok(())
    }

    /// Queues a flush: the caller waits until everything that is queued now is written.
    pub(crate) fn flush(&mut self, reply: Reply) {
        // A dropped reply tells the caller that the ledger is closed.
        if !self.is_closed {
            self.push(Queued::Flush(reply));
        }
    }

    /// Closes the queue: nothing is accepted from now on.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Hands all items to the writer, which turns uses into entries outside of the lock.
    pub(crate) fn take(&mut self) -> Vec<Item> {
        self.index.clear();
        self.taken += mem::take(&mut self.entries);
        self.is_woken = false;
        // The next batch probably has as many items.
        let room = Vec::with_capacity(self.items.len().min(self.batch));
        mem::replace(&mut self.items, room)
    }

    /// Notes that the writer no longer has this many entries in memory.
    pub(crate) fn forget(&mut self, entries: usize) {
        self.taken = self.taken.saturating_sub(entries);
    }

    /// Returns how many entries are in memory, including those that the writer has taken.
    pub(crate) fn queued(&self) -> usize {
        self.entries + self.taken
    }

    /// Returns when the first waiting entry was recorded.
    pub(crate) fn oldest(&self) -> Option<Time> {
        self.items.iter().find_map(|item| match item {
            Item::Use(it) => Some(it.at),
            Item::Other(it) => it.at(),
        })
    }

    fn push(&mut self, queued: Queued) {
        self.items.push(Item::Other(Box::new(queued)));
    }

    /// Counts one more entry. Returns whether to wake the writer now.
    fn grown(&mut self) -> bool {
        self.entries += 1;
        let is_due = self.entries >= self.batch && !self.is_woken;
        self.is_woken |= is_due;
        is_due
    }

    /// Adds the use that is about to be queued to the index, so that later uses are merged into it.
    fn index_next(&mut self, hash: u64, of: &UseOf<'_>) {
        let position = self.items.len();
        let (items, hasher) = (&self.items, &self.hasher);
        let is_same = |it: &usize| use_at(items, *it).is_some_and(|it| it.is_of(of));
        // If the index has a use with these labels, that use has reached the largest sum. The new use
        // replaces it in the index.
        match self.index.find_mut(hash, is_same) {
            Some(old) => *old = position,
            None => {
                let rehash = |it: &usize| use_at(items, *it).map_or(0, |it| it.of().hash(hasher));
                self.index.insert_unique(hash, position, rehash);
            }
        }
    }

    fn is_open(&self) -> Result<(), Full> {
        match self.is_closed {
            true => Err(Full::Closed),
            false => Ok(()),
        }
    }

    fn has_room(&self, entries: usize) -> Result<(), Full> {
        let max_queued = self.max_queued;
        if self.queued().saturating_add(entries) > max_queued {
            return Err(Full::Queue { max_queued });
        }
        Ok(())
    }
}

fn use_at(items: &[Item], position: usize) -> Option<&Use> {
    match items.get(position) {
        Some(Item::Use(it)) => Some(it),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
