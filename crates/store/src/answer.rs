//! What a store answers: at once, or later.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The answer of a store. Awaiting one that is there already costs nothing and needs no runtime.
pub enum Answer<'a, T> {
    /// The answer is there.
    Now(T),
    /// The answer has to be waited for.
    Later(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

impl<'a, T> Answer<'a, T> {
    /// The answer that `future` will give.
    pub fn later(future: impl Future<Output = T> + Send + 'a) -> Answer<'a, T> {
        Answer::Later(Box::pin(future))
    }
}

impl<'a, T: Send + 'a> Answer<'a, T> {
    /// The same answer, changed by `change`.
    pub fn map<U>(self, change: impl FnOnce(T) -> U + Send + 'a) -> Answer<'a, U> {
        match self {
            Answer::Now(answer) => Answer::Now(change(answer)),
            Answer::Later(later) => Answer::later(async move { change(later.await) }),
        }
    }

    /// This answer and another, waited for at the same time.
    pub fn and<U: Send + 'a>(self, other: Answer<'a, U>) -> Answer<'a, (T, U)> {
        match (self, other) {
            (Answer::Now(one), Answer::Now(other)) => Answer::Now((one, other)),
            (one, other) => {
                let (mut one, mut other) = (one.into_future(), other.into_future());
                let (mut first, mut second) = (None, None);
                Answer::later(poll_fn(move |context| {
                    first = first.take().or_else(|| ready(&mut one, context));
                    second = second.take().or_else(|| ready(&mut other, context));
                    match (first.take(), second.take()) {
                        (Some(one), Some(other)) => Poll::Ready((one, other)),
                        both => {
                            (first, second) = both;
                            Poll::Pending
                        }
                    }
                }))
            }
        }
    }
}

/// What a future gives, if it is ready.
fn ready<T>(future: &mut AnswerFuture<'_, T>, context: &mut Context<'_>) -> Option<T> {
    match Pin::new(future).poll(context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

impl<T> std::fmt::Debug for Answer<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Answer::Now(_) => "Answer::Now",
            Answer::Later(_) => "Answer::Later",
        })
    }
}

impl<'a, T> IntoFuture for Answer<'a, T> {
    type Output = T;
    type IntoFuture = AnswerFuture<'a, T>;

    #[inline]
    fn into_future(self) -> AnswerFuture<'a, T> {
        match self {
            Answer::Now(answer) => AnswerFuture::Now(Some(answer)),
            Answer::Later(later) => AnswerFuture::Later(later),
        }
    }
}

/// An [`Answer`] as a future.
#[allow(missing_debug_implementations)] // Only `.await` makes one, and drops it.
pub enum AnswerFuture<'a, T> {
    /// The answer, until it was taken.
    Now(Option<T>),
    /// The answer has to be waited for.
    Later(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

// Nothing here is pinned in place: the boxed future is pinned by its box.
impl<T> Unpin for AnswerFuture<'_, T> {}

impl<T> Future for AnswerFuture<'_, T> {
    type Output = T;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match self.get_mut() {
            // A future is not polled again after it was ready.
            AnswerFuture::Now(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            AnswerFuture::Later(later) => later.as_mut().poll(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_there_is_ready_at_the_first_poll() {
        let mut answer = Answer::Now(7).map(|it| it + 1).into_future();
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert_eq!(Pin::new(&mut answer).poll(&mut context), Poll::Ready(8));
    }

    #[test]
    fn an_answer_that_comes_later_is_changed_when_it_comes() {
        let mut answer = Answer::later(async { 7 }).map(|it| it + 1).into_future();
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert_eq!(Pin::new(&mut answer).poll(&mut context), Poll::Ready(8));
    }
}
