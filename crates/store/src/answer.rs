//! The answer of a store, which is ready at once or later.

use std::future::{Future, IntoFuture, poll_fn};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The answer of a store. Awaiting an answer that is ready costs nothing and needs no runtime.
pub enum Answer<'a, T> {
    /// The answer is ready.
    Now(T),
    /// The answer has to be waited for.
    Later(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

impl<'a, T> Answer<'a, T> {
    /// Returns an answer that waits for `future`.
    pub fn later(future: impl Future<Output = T> + Send + 'a) -> Answer<'a, T> {
        Answer::Later(Box::pin(future))
    }
}

impl<'a, T: Send + 'a> Answer<'a, T> {
    /// Changes the value of the answer with `change`.
    pub fn map<U>(self, change: impl FnOnce(T) -> U + Send + 'a) -> Answer<'a, U> {
        match self {
            Answer::Now(answer) => Answer::Now(change(answer)),
            Answer::Later(later) => Answer::later(async move { change(later.await) }),
        }
    }

    /// Waits for this answer and another at the same time, and returns both.
    pub fn and<U: Send + 'a>(self, other: Answer<'a, U>) -> Answer<'a, (T, U)> {
        match (self, other) {
            (Answer::Now(one), other) => other.map(|other| (one, other)),
            (one, Answer::Now(other)) => one.map(|one| (one, other)),
            (Answer::Later(mut one), Answer::Later(mut other)) => {
                let mut both = (Poll::Pending, Poll::Pending);
                Answer::later(poll_fn(move |context| {
                    if both.0.is_pending() {
                        both.0 = one.as_mut().poll(context);
                    }
                    if both.1.is_pending() {
                        both.1 = other.as_mut().poll(context);
                    }
                    match mem::replace(&mut both, (Poll::Pending, Poll::Pending)) {
                        (Poll::Ready(one), Poll::Ready(other)) => Poll::Ready((one, other)),
                        waiting => {
                            both = waiting;
                            Poll::Pending
                        }
                    }
                }))
            }
        }
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
#[allow(missing_debug_implementations)] // Only `.await` creates this type, and drops it.
pub enum AnswerFuture<'a, T> {
    /// The answer; `None` after it was taken.
    Now(Option<T>),
    /// The answer has to be waited for.
    Later(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

// The box pins its future, and no other field needs to be pinned.
impl<T> Unpin for AnswerFuture<'_, T> {}

impl<T> Future for AnswerFuture<'_, T> {
    type Output = T;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match self.get_mut() {
            // Callers do not poll a future again after it was ready, so `Pending` is never seen.
            AnswerFuture::Now(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            AnswerFuture::Later(later) => later.as_mut().poll(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_changed_and_joined_now_or_later() {
        let answers = || [Answer::Now(7), Answer::later(async { 7 })];
        let mut context = Context::from_waker(std::task::Waker::noop());
        for one in answers() {
            let mut changed = one.map(|it| it + 1).into_future();
            assert_eq!(Pin::new(&mut changed).poll(&mut context), Poll::Ready(8));
            for (one, other) in answers().into_iter().zip(answers().into_iter().rev()) {
                let mut both = one.and(other).into_future();
                assert_eq!(Pin::new(&mut both).poll(&mut context), Poll::Ready((7, 7)));
            }
        }
    }
}
