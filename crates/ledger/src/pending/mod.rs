//! What was recorded and not taken by the writer yet: a list in order, and an index of the entries that
//! others may be added to.
//!
//! The lock around it is held for a look-up and a sum, or for one entry more. A use that is added to a
//! pending one allocates nothing.

mod uses;

use std::mem;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use tokio::sync::oneshot;
use tollgate_core::Time;

use crate::entry::{Entry, EntryId, check_amount};
use crate::error::{Full, LedgerError};
use crate::note::Note;

pub(crate) use uses::Use;
pub use uses::UseOf;

/// Who waits for something to be written. The answer is whether all of it was new.
pub(crate) type Reply = oneshot::Sender<Result<bool, LedgerError>>;

/// A place in the order.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all are of the large one, and a box would be one allocation more for each"
)]
#[derive(Debug)]
pub(crate) enum Queued {
    /// An entry that nobody waits for.
    One(Entry),
    /// A note that nobody waits for.
    Note(Note),
    /// Entries that somebody waits for. They are written in one transaction, or not at all.
    BatchDecision(Vec<Entry>, Reply),
    /// Somebody waits for what is before.
    Mark(Reply),
}

impl Queued {
    pub(crate) fn entries(&self) -> &[Entry] {
        match self {
            Queued::One(entry) => std::slice::from_ref(entry),
            Queued::BatchDecision(entries, _) => entries,
            Queued::Note(_) | Queued::Mark(_) => &[],
        }
    }

    pub(crate) fn note(&self) -> Option<&Note> {
        match self {
            Queued::Note(note) => Some(note),
            _ => None,
        }
    }

    /// How many lines of the books it is.
    pub(crate) fn count(&self) -> usize {
        self.entries().len() + usize::from(self.note().is_some())
    }

    /// When the first of them was recorded.
    pub(crate) fn at(&self) -> Option<Time> {
        let entry = self.entries().first().map(|it| it.at);
        entry.or_else(|| self.note().map(|it| it.at))
    }
}

/// A place in the order, as it is kept here.
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

/// See the module.
#[derive(Debug)]
pub(crate) struct Pending {
    items: Vec<Item>,
    /// Places in `items` of uses that others may be added to.
    index: HashTable<usize>,
    hasher: RandomState,
    /// How many entries the items have.
    entries: usize,
    /// How many entries the writer has taken, and keeps in memory.
    taken: usize,
    max_queued: usize,
    batch: usize,
    /// Whether the writer was told of a full batch since it took the last.
    is_told: bool,
    is_closed: bool,
}

/// Whether the writer is to be told at once.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IsDue(pub(crate) bool);

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
            is_told: false,
            is_closed: false,
        }
    }

    /// Takes an entry, or adds it to one that waits.
    pub(crate) fn record(&mut self, entry: Entry) -> Result<IsDue, Full> {
        if let Some(of) = UseOf::of(&entry) {
            return self.record_use(&of, entry.amount, entry.count, entry.at, || entry.id);
        }
        if self.is_closed {
            return Err(Full::Closed);
        }
        entry.check()?;
        self.has_room(1)?;
        self.push(Queued::One(entry));
        Ok(self.grown())
    }

    /// Adds a use to one that waits, or makes an entry of it.
    pub(crate) fn record_use(
        &mut self,
        of: &UseOf<'_>,
        amount: i64,
        count: u32,
        at: Time,
        id: impl FnOnce() -> EntryId,
    ) -> Result<IsDue, Full> {
        if self.is_closed {
            return Err(Full::Closed);
        }
        check_amount(amount)?;
        let hash = of.hash(&self.hasher);
        if self.add(hash, of, amount, count) {
            return Ok(IsDue(false));
        }
        self.has_room(1)?;
        let new = Use::new(of, (amount, count), at, id)?;
        self.point(hash, of);
        self.items.push(Item::Use(new));
        Ok(self.grown())
    }

    /// Takes a note.
    pub(crate) fn note(&mut self, note: Note) -> Result<IsDue, Full> {
        if self.is_closed {
            return Err(Full::Closed);
        }
        note.check()?;
        self.has_room(1)?;
        self.push(Queued::Note(note));
        Ok(self.grown())
    }

    /// Takes entries that somebody waits for.
    pub(crate) fn together(&mut self, entries: Vec<Entry>, reply: Reply) -> Result<(), Full> {
        if self.is_closed {
            return Err(Full::Closed);
        }
        entries.iter().try_for_each(Entry::check)?;
        self.has_room(entries.len())?;
        self.entries += entries.len();
        self.push(Queued::BatchDecision(entries, reply));
        Ok(())
    }

    /// Somebody waits for all that is here now.
    pub(crate) fn mark(&mut self, reply: Reply) {
        // What replies when it is dropped says that the writer has ended.
        if !self.is_closed {
            self.push(Queued::Mark(reply));
        }
    }

    /// Nothing more is taken.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Hands all of it to the writer, who makes entries of it where nobody waits for the lock.
    pub(crate) fn take(&mut self) -> Vec<Item> {
        self.index.clear();
        self.taken += mem::take(&mut self.entries);
        self.is_told = false;
        // The next ones are likely to be as many.
        let room = Vec::with_capacity(self.items.len().min(self.batch));
        mem::replace(&mut self.items, room)
    }

    /// The writer has so many entries less in memory.
    pub(crate) fn forget(&mut self, entries: usize) {
        self.taken = self.taken.saturating_sub(entries);
    }

    /// How many entries are in memory, those with the writer included.
    pub(crate) fn queued(&self) -> usize {
        self.entries + self.taken
    }

    /// When the first that waits here was recorded.
    pub(crate) fn oldest(&self) -> Option<Time> {
        self.items.iter().find_map(|item| match item {
            Item::Use(it) => Some(it.at()),
            Item::Other(it) => it.at(),
        })
    }

    /// Whether `of` was added to an entry that waits.
    fn add(&mut self, hash: u64, of: &UseOf<'_>, amount: i64, count: u32) -> bool {
        let items = &mut self.items;
        let is_same = |place: &usize| use_at(items, *place).is_some_and(|it| it.is_of(of));
        let Some(&place) = self.index.find(hash, is_same) else {
            return false;
        };
        match items.get_mut(place) {
            Some(Item::Use(it)) => it.add(amount, count),
            _ => false,
        }
    }

    fn push(&mut self, queued: Queued) {
        self.items.push(Item::Other(Box::new(queued)));
    }

    /// There is one more.
    fn grown(&mut self) -> IsDue {
        self.entries += 1;
        let is_due = self.entries >= self.batch && !self.is_told;
        self.is_told |= is_due;
        IsDue(is_due)
    }

    /// Makes the use that is about to be pushed the one that others are added to.
    fn point(&mut self, hash: u64, of: &UseOf<'_>) {
        let place = self.items.len();
        let (items, hasher) = (&self.items, &self.hasher);
        let is_same = |it: &usize| use_at(items, *it).is_some_and(|it| it.is_of(of));
        // One whose sum is too large for more is followed by another.
        match self.index.find_mut(hash, is_same) {
            Some(old) => *old = place,
            None => {
                let rehash = |it: &usize| use_at(items, *it).map_or(0, |it| it.of().hash(hasher));
                self.index.insert_unique(hash, place, rehash);
            }
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

fn use_at(items: &[Item], place: usize) -> Option<&Use> {
    match items.get(place) {
        Some(Item::Use(it)) => Some(it),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
