//! The body of an answer. It counts as held memory until the client has taken it.
//!
//! The count belongs to the bytes, not to the stream: HTTP/2 keeps bytes that the client does not
//! take, even when the stream that made them has ended.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};

use super::memory::{Account, Charge, FREE, HeldPage, LARGE_ANSWER, Untaken};
use crate::http::activity::Active;

/// The most bytes of an HTTP/2 answer that are offered at a time. The client has to take each part in
/// time, so a client that takes a byte from time to time cannot hold a large answer.
const PART: usize = 16 * 1024;
/// What an answer on HTTP/2 counts as, in addition to its body: its head and its stream.
const OVERHEAD: usize = 1024;

/// The body of an answer.
pub(crate) struct Answer<B> {
    body: B,
    /// `None` if the answer need not be counted, or if its last part has the charge.
    charge: Option<Charge>,
    /// Bytes of `body` that were not passed to the connection yet.
    rest: Bytes,
    is_stream: bool,
    /// Whether the request did not show how large the answer would be.
    is_large: bool,
    is_shared: bool,
    page: Option<Arc<HeldPage>>,
    _active: Option<Active>,
}

/// Marks a response whose body is a page that other responses share.
#[derive(Clone, Copy)]
pub(crate) enum SharedPage {
    /// The server keeps the page in any case, so the page is not counted.
    Kept,
    /// The page at this address exists until all clients have taken it. It counts for each client that has not.
    Rendered(usize),
}

impl<B: Body> Answer<B> {
    /// Makes an answer on HTTP/1. HTTP/1 has one answer at a time, so small answers are not
    /// counted.
    pub(crate) fn single(body: B, account: &Account, charge: Option<Charge>) -> Answer<B> {
        let bytes = known_bytes(&body);
        let is_large = charge.is_some();
        let charge = match charge {
            Some(mut charge) => {
                charge.set(bytes);
                Some(charge)
            }
            None => (bytes > FREE).then(|| account.charge(bytes)),
        };
        Answer {
            body,
            charge,
            rest: Bytes::new(),
            is_stream: false,
            is_large,
            is_shared: false,
            page: None,
            _active: None,
        }
    }

    /// Makes an answer on HTTP/2. `charge` is what the request has taken from the account of its connection.
    pub(crate) fn stream(body: B, mut charge: Charge) -> Answer<B> {
        let is_large = charge.bytes() >= LARGE_ANSWER;
        charge.set(OVERHEAD + known_bytes(&body));
        Answer {
            body,
            charge: Some(charge),
            rest: Bytes::new(),
            is_stream: true,
            is_large,
            is_shared: false,
            page: None,
            _active: None,
        }
    }

    /// Counts the body as a page that is shared, if it is one.
    pub(crate) fn of_page(mut self, page: Option<SharedPage>) -> Answer<B> {
        if let (Some(SharedPage::Rendered(at)), Some(charge)) = (page, &self.charge) {
            let bytes = known_bytes(&self.body);
            self.page = Some(charge.account().hold_page(at, bytes));
        }
        self.shared(page.is_some())
    }

    /// Counts as an open request until the body is dropped.
    pub(crate) fn while_active(mut self, active: Active) -> Answer<B> {
        self._active = Some(active);
        self
    }

    /// Does not count the bytes of the body, if they are shared.
    pub(crate) fn shared(mut self, is_shared: bool) -> Answer<B> {
        if is_shared && let Some(charge) = &mut self.charge {
            charge.set(OVERHEAD);
        }
        self.is_shared = is_shared;
        self
    }

    /// Counts the bytes of the body that are not counted yet.
    fn count(&mut self, bytes: usize) {
        let Some(charge) = &mut self.charge else {
            return;
        };
        if self.is_shared {
            return;
        }
        if self.is_large {
            charge.account().saw_large_answer(bytes);
        }
        // The size of this body was not known before.
        if charge.bytes() < bytes {
            charge.set(bytes);
        }
    }

    /// Offers the next part of `rest`.
    fn next_part(&mut self) -> Part {
        if !self.is_stream {
            let bytes = std::mem::take(&mut self.rest);
            let counted = if self.is_shared { 0 } else { bytes.len() };
            let charge = self.charge.as_mut().map(|charge| charge.split(counted));
            // No time limit is needed here: `TCP_USER_TIMEOUT` ends a connection whose client does
            // not read.
            let held = charge.map(Charge::at_any_time);
            return self.part(bytes, held);
        }
        let bytes = self.rest.split_to(self.rest.len().min(PART));
        let is_last = self.rest.is_empty() && self.body.is_end_stream();
        let charge = match &mut self.charge {
            Some(charge) if !is_last => {
                let counted = if self.is_shared { 0 } else { bytes.len() };
                Some(charge.split(counted))
            }
            charge => charge.take(),
        };
        let held = charge.map(Charge::in_time);
        self.part(bytes, held)
    }

    fn part(&self, bytes: Bytes, held: Option<Untaken>) -> Part {
        Part {
            bytes,
            _held: held,
            _page: self.page.clone(),
        }
    }
}

fn known_bytes(body: &impl Body) -> usize {
    usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX / 2)
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answer<B> {
    type Data = Part;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Part>, B::Error>>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            };
            match frame.into_data() {
                Ok(data) => {
                    this.count(data.len());
                    this.rest = data;
                }
                Err(frame) => return Poll::Ready(Some(Ok(frame.map_data(Part::uncounted)))),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(this.next_part()))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

/// A part of an answer. It counts until it is sent or dropped.
pub(crate) struct Part {
    bytes: Bytes,
    _held: Option<Untaken>,
    _page: Option<Arc<HeldPage>>,
}

impl Part {
    fn uncounted(bytes: Bytes) -> Part {
        Part {
            bytes,
            _held: None,
            _page: None,
        }
    }
}

impl Buf for Part {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::{IpAddr, Ipv4Addr};

    use futures_util::FutureExt;
    use http_body_util::{BodyExt, Full};

    use super::*;
    use crate::net::{MAX_HELD_BY_CLIENT, Memory};

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn next(answer: &mut Answer<Full<Bytes>>) -> Option<Part> {
        let frame: Option<Result<Frame<Part>, Infallible>> = answer.frame().now_or_never().unwrap();
        frame.map(|it| it.unwrap().into_data().ok().unwrap())
    }

    /// The bytes of a page are in memory until the last part of the last answer is taken.
    #[test]
    fn page_counts_until_its_last_part_is_taken() {
        let memory = Memory::default();
        let account = memory.account(PEER);
        let page = Bytes::from(vec![0; MAX_HELD_BY_CLIENT]);
        let at = Some(SharedPage::Rendered(page.as_ptr() as usize));
        let has_room = || memory.account(PEER).has_room_for(LARGE_ANSWER);
        let answer = |is_http2| {
            let body = Full::new(page.clone());
            let charge = account.charge(LARGE_ANSWER);
            match is_http2 {
                true => Answer::stream(body, charge).of_page(at),
                false => Answer::single(body, &account, Some(charge)).of_page(at),
            }
        };
        for is_http2 in [true, false] {
            let mut answers = [answer(is_http2), answer(is_http2)];
            assert!(!has_room(), "not read yet");
            let parts: Vec<Part> = answers.iter_mut().filter_map(next).collect();
            drop(answers);
            assert!(!has_room(), "in the buffer of the connection");
            drop(parts);
            assert!(has_room());
        }
        let kept =
            Answer::stream(Full::new(page), account.charge(0)).of_page(Some(SharedPage::Kept));
        assert!(has_room());
        drop(kept);
    }
}
