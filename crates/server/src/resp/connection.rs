//! One connection: reads what has arrived, answers all of it, and writes the answers together.

use std::io;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use super::bounds::{COMMAND_TIMEOUT, FAREWELL, MAX_COMMAND, MAX_OUTPUT};
use super::conversation::{Conversation, Step};
use super::input::Input;
use crate::net::{Account, AnswerNotTaken, FREE, READ_TIMEOUT, Stopping, Stream, within};

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The client closed it.
    Client,
    /// The client broke the protocol.
    Cut,
    /// The client was silent for too long, or took too long to send a command.
    Silent,
    /// The server stops.
    Stop,
}

/// The input that the connection waits for.
#[derive(Clone, Copy)]
enum Wait {
    /// The next command, before a deadline. A new deadline for each command would need the clock, so a
    /// command only sets `heard`. When the deadline passes, a client that was heard and has logged in
    /// gets a new deadline. So a silent client is cut off after one to two timeouts.
    Command { heard: bool },
    /// The rest of a command that has begun to arrive.
    Rest,
}

/// Serves a client until one side ends the connection. When the server stops, commands that have begun to
/// arrive are answered. The end of the connection leaves together with the last answer, so a client that
/// has the answer can see that it must not send another command here.
pub(super) async fn serve(
    mut stream: Stream,
    mut conversation: Conversation,
    account: Account,
    idle_timeout: Duration,
    stopping: Stopping,
) -> io::Result<End> {
    let mut input = Input::new();
    let mut out = Output {
        bytes: Vec::new(),
        account,
    };
    let mut last_call = pin!(stopping.last_call());
    let command_timeout = COMMAND_TIMEOUT.min(idle_timeout);
    let mut deadline = pin!(sleep(match conversation.is_logged_in() {
        true => idle_timeout,
        false => command_timeout,
    }));
    let mut wait = Wait::Command { heard: false };
    loop {
        let before = input.unread().len();
        let is_last = before > 0 && stopping.is_stopping();
        if is_last {
            stream.cork(true);
        }
        let end = answer(&mut stream, &mut conversation, &mut input, &mut out).await?;
        if let Some(end) = end {
            if end == End::Cut {
                say_goodbye(&mut stream).await;
            }
            return Ok(end);
        }
        if is_last {
            if input.is_empty() {
                if read_more(&mut stream, &mut input).await? {
                    continue;
                }
                say_goodbye(&mut stream).await;
                return Ok(End::Stop);
            }
            stream.cork(false);
        }
        let progress = input.unread().len() < before;
        match wait {
            _ if input.is_empty() => wait = Wait::Command { heard: before > 0 },
            Wait::Rest if !progress => {}
            _ => {
                wait = Wait::Rest;
                deadline.as_mut().reset(Instant::now() + command_timeout);
            }
        }
        loop {
            tokio::select! {
                // Input that has arrived comes first.
                biased;
                read = stream.read_buf(input.room()) => match read? {
                    0 => return Ok(End::Client),
                    _ => break,
                },
                () = &mut deadline => match wait {
                    Wait::Command { heard: true } if conversation.is_logged_in() => {
                        wait = Wait::Command { heard: false };
                        deadline.as_mut().reset(Instant::now() + idle_timeout);
                    }
                    Wait::Command { .. } | Wait::Rest => return Ok(End::Silent),
                },
                () = &mut last_call, if input.is_empty() => return Ok(End::Stop),
            }
        }
    }
}

/// Reads more, if it has arrived. Returns whether it has.
async fn read_more(stream: &mut Stream, input: &mut Input) -> io::Result<bool> {
    // Tokio notices new input only between the turns of tasks.
    yield_now().await;
    match stream.read_buf(input.room()).now_or_never() {
        Some(read) => Ok(read? > 0),
        None => Ok(false),
    }
}

/// Answers all complete commands, and writes the answers.
async fn answer(
    stream: &mut Stream,
    conversation: &mut Conversation,
    input: &mut Input,
    out: &mut Output,
) -> io::Result<Option<End>> {
    loop {
        let step = conversation.answer(input, &mut out.bytes);
        if step != Step::Ask {
            write(stream, input, out).await?;
        }
        match step {
            Step::Ask if !conversation.may_take_long() => conversation.ask(&mut out.bytes).await,
            Step::Ask if ask_for_long(stream, conversation, input, out).await? => {}
            Step::Write => {}
            Step::Read => return Ok(None),
            Step::Ask | Step::Close => return Ok(Some(End::Client)),
            Step::Cut => return Ok(Some(End::Cut)),
        }
    }
}

/// Asks a question that may wait for other clients. If the client closes the connection, the wait
/// ends. Returns whether the question was answered.
async fn ask_for_long(
    stream: &mut Stream,
    conversation: &mut Conversation,
    input: &mut Input,
    out: &mut Output,
) -> io::Result<bool> {
    // The answers to earlier commands must not wait.
    write(stream, input, out).await?;
    let mut asking = pin!(conversation.ask(&mut out.bytes));
    while input.unread().len() < MAX_COMMAND {
        tokio::select! {
            biased;
            () = &mut asking => return Ok(true),
            read = stream.read_buf(input.room()) => if read? == 0 {
                return Ok(false);
            },
        }
    }
    asking.await;
    Ok(true)
}

/// Answers that are not written yet.
struct Output {
    bytes: Vec<u8>,
    /// Counts these bytes as memory that the client holds.
    account: Account,
}

/// Writes all of `out`, and clears it. A client that does not read its answers is cut off, at once if there is no room
/// for the answers in the memory of the door.
async fn write(stream: &mut Stream, input: &Input, out: &mut Output) -> io::Result<()> {
    if out.bytes.is_empty() {
        return Ok(());
    }
    let held = out.bytes.capacity() + input.capacity();
    let held = (held > FREE).then(|| out.account.charge(held));
    let patience = match held.is_none() || out.account.has_room_for(0) {
        true => READ_TIMEOUT,
        false => Duration::ZERO,
    };
    let writing = async {
        stream.write_all(&out.bytes).await?;
        stream.flush().await
    };
    let written = within(patience, writing).await;
    written.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, AnswerNotTaken))??;
    out.bytes.clear();
    out.bytes.shrink_to(MAX_OUTPUT);
    Ok(())
}

/// Closes our side, and reads on for a while. Otherwise the client's system would report a broken
/// connection, and the client would not see the error.
async fn say_goodbye(stream: &mut Stream) {
    let (patience, mut most) = FAREWELL;
    let farewell = async {
        stream.shutdown().await?;
        let mut ignored = [0; 1024];
        while most > 0 {
            match stream.read(&mut ignored).await? {
                0 => break,
                read => most = most.saturating_sub(read),
            }
        }
        io::Result::Ok(())
    };
    // The connection ends in any case.
    let _ = timeout(patience, farewell).await;
}

#[cfg(test)]
mod tests;
