//! Follows objects at the API server: lists them once, then watches what happens to them.
//!
//! A list is from the API server's memory (`resourceVersion=0`): otherwise etcd reads all pods of the cluster for each
//! node. What is not the latest is no harm: a pod is looked at where it runs, and deleted only if it is still the same.
//! So lists have no pages: from memory, the API server gives all of a list at once, and with pages it asks etcd. That is
//! why kube's watcher, which has a list whole in memory before it reads it, isn't used.

use std::io::{self, BufReader, Cursor, Read};
use std::pin::pin;
use std::time::Duration;

use futures::{AsyncBufRead as _, AsyncBufReadExt as _};
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use kube::runtime::watcher::DefaultBackoff;
use kube::{Client, Error};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};

use crate::api;
use crate::stream::{self, Change, End, Object, Unheard};

/// How long a list may take: as long as the API server takes for any request (--request-timeout).
const LIST_PATIENCE: Duration = Duration::from_secs(60);
/// How long a watch is asked for, in seconds, and how much later the server has gone away without a word.
const WATCH: u32 = 290;
const WATCH_GRACE: Duration = Duration::from_secs(5);
/// The longest pause between two watches, in case that the pauses end.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How many news may wait: each is of one object.
const WAITING: usize = 16;

/// Which objects are followed. One that is none of them any more is gone.
#[derive(Debug)]
pub struct Which {
    /// The path of their kind.
    pub path: &'static str,
    /// The label that they have, if they are to have one.
    pub label: Option<&'static str>,
    /// What their fields are to be, as a selector.
    pub fields: String,
}

/// What there is to say of the objects.
#[derive(Debug)]
pub enum News<T> {
    /// A list begins.
    Begins,
    /// This object is in it.
    Listed(T),
    /// It is complete: what it hasn't is gone.
    Complete,
    /// This object is new, or not what it was.
    Changed(T),
    /// This one is gone.
    Gone(T),
    /// The server can't be asked, and this is why.
    Failed(String),
}

/// Follows objects for as long as somebody takes the news.
pub fn follow<T: Object + Send + 'static>(client: Client, which: Which) -> mpsc::Receiver<News<T>> {
    let (news, taker) = mpsc::channel(WAITING);
    tokio::spawn(Follower { client, which, news }.run());
    taker
}

struct Follower<T> {
    client: Client,
    which: Which,
    news: mpsc::Sender<News<T>>,
}

impl<T: Object + Send + 'static> Follower<T> {
    /// Lists and watches for as long as somebody takes the news, with pauses that grow as long as watches are short.
    async fn run(self) {
        let mut pauses = DefaultBackoff::default();
        let mut version = None;
        while !self.news.is_closed() {
            if let End::Failed(reason) = self.turn(&mut version).await {
                self.tell(News::Failed(reason)).await;
            }
            sleep(pauses.next().unwrap_or(LONGEST_PAUSE)).await;
        }
    }

    /// Lists if no version is known, and watches once.
    async fn turn(&self, version: &mut Option<String>) -> End {
        let mut current = match version.take() {
            Some(version) => version,
            None => match self.list().await {
                Ok(version) => version,
                Err(end) => return end,
            },
        };
        let end = self.watch(&mut current).await;
        if end != End::Expired {
            *version = Some(current);
        }
        end
    }

    /// Hands over every object; the version of all of them together.
    async fn list(&self) -> Result<String, End> {
        let Which { path, label, fields } = &self.which;
        let parameters =
            ListParams { label_selector: label.map(str::to_owned), ..ListParams::default().match_any().fields(fields) };
        let request = Request::new(*path).list(&parameters).map_err(failed)?;
        self.tell(News::Begins).await;
        let news = self.news.clone();
        let take = move |object| news.blocking_send(News::Listed(object)).map_err(|_| Unheard);
        let listed = self.read(request, LIST_PATIENCE, |chunks| stream::read_list(chunks, take));
        let version = listed.await?.map_err(|error| End::Failed(stream::words(&error)))?;
        self.tell(News::Complete).await;
        Ok(version)
    }

    /// Hands over what happens after a version, which goes on with it.
    async fn watch(&self, version: &mut String) -> End {
        let Which { path, label, fields } = &self.which;
        let parameters = WatchParams {
            label_selector: label.map(str::to_owned),
            ..WatchParams::default().fields(fields).timeout(WATCH)
        };
        let request = match Request::new(*path).watch(&parameters, version) {
            Ok(request) => request,
            Err(error) => return failed(error),
        };
        let (news, mut last) = (self.news.clone(), version.clone());
        let take = move |change| {
            let news_of_it = match change {
                Change::Changed(object) => News::Changed(object),
                Change::Gone(object) => News::Gone(object),
            };
            news.blocking_send(news_of_it).map_err(|_| Unheard)
        };
        let read = move |chunks| {
            let end = stream::read_changes(chunks, &mut last, take);
            (last, end)
        };
        let patience = Duration::from_secs(WATCH.into()) + WATCH_GRACE;
        match self.read(request, patience, read).await {
            Ok((last, end)) => {
                *version = last;
                end
            }
            Err(end) => end,
        }
    }

    /// Has an answer read as it comes, on a thread of its own, which waits for each piece.
    async fn read<R: Send + 'static>(
        &self,
        request: hyper::Request<Vec<u8>>,
        patience: Duration,
        read: impl FnOnce(BufReader<Chunks>) -> R + Send + 'static,
    ) -> Result<R, End> {
        let end = Instant::now() + patience;
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("it took longer than {} s", patience.as_secs()));
        let answer = match timeout_at(end, self.client.request_stream(request)).await {
            Err(_) => return Err(failed(late())),
            Ok(Err(Error::Api(status))) if status.code == 410 => return Err(End::Expired),
            Ok(answer) => answer.map_err(|error| End::Failed(api::words(&error)))?,
        };
        let mut answer = pin!(answer);
        let (sender, chunks) = mpsc::channel(1);
        let reading = spawn_blocking(move || {
            // serde_json takes each byte by itself, which is quick from a BufReader.
            read(BufReader::new(Chunks { chunks, current: Cursor::default() }))
        });
        loop {
            let chunk = tokio::select! {
                // It has read what it wanted, or what makes no sense: a watch may be silent for minutes after that.
                () = sender.closed() => break,
                chunk = timeout_at(end, answer.fill_buf()) => match chunk {
                    Err(_) => Err(late()),
                    Ok(chunk) => chunk.map(<[u8]>::to_vec),
                },
            };
            let length = chunk.as_ref().map_or(0, Vec::len);
            if chunk.as_ref().is_ok_and(Vec::is_empty) || sender.send(chunk).await.is_err() || length == 0 {
                break;
            }
            answer.as_mut().consume(length);
        }
        drop(sender);
        reading.await.map_err(failed)
    }

    /// Without a taker, nothing is said.
    async fn tell(&self, news: News<T>) {
        let _ = self.news.send(news).await;
    }
}

fn failed(error: impl ToString) -> End {
    End::Failed(error.to_string())
}

/// An answer, as it comes.
struct Chunks {
    chunks: mpsc::Receiver<io::Result<Vec<u8>>>,
    current: Cursor<Vec<u8>>,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let length = self.current.read(buffer)?;
            if length > 0 {
                return Ok(length);
            }
            match self.chunks.blocking_recv() {
                Some(chunk) => self.current = Cursor::new(chunk?),
                None => return Ok(0),
            }
        }
    }
}
