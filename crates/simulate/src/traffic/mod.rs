//! Described traffic: streams of requests with seeded random arrivals.
//!
//! A stream is written on one line: a kind, then settings, such as `surge rate=50/s factor=10 at=10m for=5m`.
//! All kinds but `steady` and `bursts` are Poisson processes. The same text and seed always give the same
//! requests. `stream.rs` reads the text, `random.rs` is the source of chance.

mod random;
mod stream;

use tollgate::{Attributes, Time};

pub use stream::{BadStream, Stream};

use random::Random;

use crate::number::floor;

/// Streams of requests that run at the same time.
#[derive(Debug)]
pub struct Traffic {
    streams: Vec<Running>,
    start: Time,
}

#[derive(Debug)]
struct Running {
    stream: Stream,
    random: Random,
    /// The share of requests of the subjects up to each rank, if ranks have different shares.
    shares: Vec<f64>,
    /// The time of the next request in microseconds since the start; `None` at the end.
    next: Option<u64>,
    /// How many requests of the current burst are left.
    left: u64,
}

impl Traffic {
    /// Starts streams at `start`. `seed` picks the random numbers.
    #[must_use]
    pub fn new(streams: Vec<Stream>, start: Time, seed: u64) -> Traffic {
        let running = (1..).zip(streams).map(|(place, stream)| {
            let mut running = Running {
                shares: stream.shares(),
                random: Random::new(seed ^ (place << 32)),
                next: None,
                left: 0,
                stream,
            };
            running.next = running.first();
            running
        });
        Traffic {
            streams: running.collect(),
            start,
        }
    }

    /// Returns how long the traffic lasts, in microseconds.
    #[must_use]
    pub fn lasts(&self) -> u64 {
        let lengths = self.streams.iter().map(|it| it.stream.duration);
        lengths.max().unwrap_or(0)
    }

    /// Calls `each` with the time, the attributes and the cost of every request, in the order of time.
    pub fn run(mut self, each: &mut dyn FnMut(Time, &Attributes<'_>, u64)) -> u64 {
        let (mut requests, mut subject) = (0, String::new());
        loop {
            let next = self.streams.iter().enumerate();
            let next = next.filter_map(|(place, it)| Some((it.next?, place)));
            let Some((micros, place)) = next.min() else {
                return requests;
            };
            let running = &mut self.streams[place];
            running.pick(&mut subject);
            let mut attributes = Attributes::new();
            for (name, value) in &running.stream.with {
                attributes.push(name, value);
            }
            attributes.push(&running.stream.per, &subject);
            let time = Time::from_micros(self.start.as_micros().saturating_add(micros));
            each(time, &attributes, running.stream.cost);
            drop(attributes);
            requests += 1;
            running.next = running.after(micros);
        }
    }
}

impl Running {
    fn first(&mut self) -> Option<u64> {
        match self.stream.kind {
            stream::Kind::Steady => Some(self.stream.from),
            stream::Kind::Bursts { size, .. } => {
                self.left = size - 1;
                Some(self.stream.from)
            }
            _ => self.after(self.stream.from),
        }
        .filter(|at| *at < self.stream.duration)
    }

    /// Returns the time of the request after one at `at`.
    fn after(&mut self, at: u64) -> Option<u64> {
        let stream = &self.stream;
        let next = match stream.kind {
            stream::Kind::Steady => at.checked_add(floor(stream.gap()).max(1))?,
            stream::Kind::Bursts { .. } if self.left > 0 => {
                self.left -= 1;
                at
            }
            stream::Kind::Bursts { size, every } => {
                self.left = size - 1;
                at.checked_add(every)?
            }
            // A Poisson process at the highest rate, of which a share is kept (thinning).
            _ => {
                let mut at = at as f64;
                loop {
                    at += self.random.exponential() * stream.gap() / stream.highest();
                    if at >= stream.duration as f64 {
                        return None;
                    }
                    if self.random.unit() * stream.highest() < stream.level(at) {
                        break floor(at);
                    }
                }
            }
        };
        (next < self.stream.duration).then_some(next)
    }

    /// Writes the subject of the next request.
    fn pick(&mut self, subject: &mut String) {
        let stream = &self.stream;
        let rank = match self.shares.is_empty() {
            true => self.random.below(stream.subjects),
            false => {
                let drawn = self.random.unit();
                self.shares.partition_point(|share| *share < drawn) as u64
            }
        };
        subject.clear();
        subject.push_str(&stream.name);
        let mut buffer = itoa::Buffer::new();
        subject.push_str(buffer.format(rank.min(stream.subjects - 1) + 1));
    }
}
