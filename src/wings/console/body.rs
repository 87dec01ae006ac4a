//! Bodies: of responses, whole or live, and of forms.
use std::{
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};

use super::{
    board::Board,
    page::{self, Content, Place},
};
use crate::{
    port::BoxFuture,
    race::{First, race},
    sync::Mutex,
    time::Instant,
};

/// Maximum size of a form.
const FORM: usize = 16 << 10;

/// Time limit for a form to arrive.
const FORM_TIMEOUT: Duration = Duration::from_secs(10);

/// Time after which live updates end. The browser connects again, and its rights are checked again.
const LIVE: Duration = Duration::from_secs(300);

/// Time without an update after which an event without content is sent: proxies close a connection
/// that is silent for a minute, and the page and the server notice that the other is gone.
const SILENCE: Duration = Duration::from_secs(15);

/// Body of a [console's](super::Console) response.
pub struct ConsoleBody(Kind);

enum Kind {
    Whole(Option<Bytes>),
    /// The next update, and what follows.
    Live(Option<BoxFuture<'static, Option<(Bytes, Live)>>>),
}

/// A page that is updated live.
pub(super) struct Live {
    pub(super) board: Arc<Board>,
    pub(super) place: Place,
    pub(super) operates: bool,
    pub(super) begun: Instant,
    /// The page that the viewer has, and the time at which it was sent.
    pub(super) last: Option<Content>,
    pub(super) sent: Instant,
    /// Counts until the page is closed.
    pub(super) _viewer: Viewer,
}

impl Live {
    /// Waits until there is something to send. `None`: the viewer connects again.
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let clock = self.board.clock.clone();
        loop {
            if self.last.is_some() {
                clock.sleep(self.board.config.refresh).await;
            }
            let now = clock.now();
            if now.saturating_since(self.begun) >= LIVE {
                return None;
            }
            let content = page::content(&self.board, &self.place, self.operates).await;
            let update = match self.last.as_ref() == Some(&content) {
                false => {
                    Some(Bytes::from(format!("data: {}\n\n", serde_json::to_string(&content).unwrap_or_default())))
                }
                true if now.saturating_since(self.sent) >= SILENCE => {
                    Some(Bytes::from_static(b"event: beat\ndata: 0\n\n"))
                }
                true => None,
            };
            self.last = Some(content);
            if let Some(update) = update {
                self.sent = now;
                return Some((update, self));
            }
        }
    }
}

impl ConsoleBody {
    pub(super) fn whole(text: impl Into<Bytes>) -> Self {
        Self(Kind::Whole(Some(text.into())))
    }

    pub(super) fn live(live: Live) -> Self {
        Self(Kind::Live(Some(Box::pin(live.next()))))
    }
}

impl Body for ConsoleBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            Kind::Whole(whole) => Poll::Ready(whole.take().map(|whole| Ok(Frame::data(whole)))),
            Kind::Live(next) => {
                let Some(update) = next.as_mut() else { return Poll::Ready(None) };
                let Poll::Ready(update) = update.as_mut().poll(cx) else { return Poll::Pending };
                let (update, live) = update.unzip();
                *next = live.map(|live| Box::pin(live.next()) as BoxFuture<'static, _>);
                Poll::Ready(update.map(|update| Ok(Frame::data(update))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.0, Kind::Whole(None) | Kind::Live(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(whole) => SizeHint::with_exact(whole.as_ref().map_or(0, |whole| whole.len() as u64)),
            Kind::Live(_) => SizeHint::new(),
        }
    }
}

impl std::fmt::Debug for ConsoleBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConsoleBody")
    }
}

/// The pages that are updated live.
#[derive(Clone, Default)]
pub(super) struct Viewers(Arc<Mutex<Entered>>);

#[derive(Default)]
struct Entered {
    last: u64,
    /// Numbers of the viewers and the times at which they came, oldest first.
    viewers: VecDeque<(u64, Instant)>,
}

impl Entered {
    /// Forgets those that should have ended. The body of one that reads nothing is not polled, so
    /// that it does not end by itself.
    fn forget(&mut self, now: Instant) {
        while self.viewers.front().is_some_and(|(_, since)| now.saturating_since(*since) > LIVE + SILENCE) {
            self.viewers.pop_front();
        }
    }
}

/// One of them, until it is dropped.
pub(super) struct Viewer(Viewers, u64);

impl Viewers {
    /// Adds a viewer, unless there are as many already.
    pub(super) fn enter(&self, max: usize, now: Instant) -> Option<Viewer> {
        let mut entered = self.0.lock();
        entered.forget(now);
        if entered.viewers.len() >= max {
            return None;
        }
        entered.last += 1;
        let number = entered.last;
        entered.viewers.push_back((number, now));
        Some(Viewer(self.clone(), number))
    }

    pub(super) fn count(&self, now: Instant) -> u64 {
        let mut entered = self.0.lock();
        entered.forget(now);
        entered.viewers.len() as u64
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.0.lock().viewers.retain(|(number, _)| *number != self.1);
    }
}

/// Reads a form. `None` if it is too large, too slow, or broken.
pub(super) async fn form<B: Body>(board: &Board, body: B) -> Option<String> {
    let read = async {
        let mut body = pin!(body);
        let mut form = Vec::new();
        while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            let Ok(mut data) = frame.ok()?.into_data() else { continue };
            while data.has_remaining() {
                let chunk = data.chunk();
                if form.len() + chunk.len() > FORM {
                    return None;
                }
                form.extend_from_slice(chunk);
                let read = chunk.len();
                data.advance(read);
            }
        }
        String::from_utf8(form).ok()
    };
    match race(read, board.clock.sleep(FORM_TIMEOUT)).await {
        First::One(form) => form,
        First::Other(()) => None,
    }
}
