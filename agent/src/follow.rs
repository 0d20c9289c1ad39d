//! Follows objects at the API server: reads all of them once, then watches what happens to them.
//!
//! Objects come one by one, also the first ones: as events of a watch, from the API server's memory. Servers that don't
//! send these (before Kubernetes 1.32) are asked for lists in pages. Of each object, only what its type reads is kept.
//!
//! kube-runtime's watcher asks again at once when a watch ends without an error: a proxy that ends each of them would be
//! asked thousands of times in a second. So this pauses after each watch.

use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::{ObjectList, Request};
use kube::runtime::watcher::{DefaultBackoff, Event};
use kube::{Client, Error};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::api;

/// How long a page of a list may take: as long as the API server takes for any request (--request-timeout).
const LIST_PATIENCE: Duration = Duration::from_secs(60);
/// How long a watch is asked for, in seconds, and after how much longer a silent server is taken to be gone.
const WATCH: u32 = 290;
const WATCH_GRACE: Duration = Duration::from_secs(5);
/// The longest pause between two watches, in case that the pauses end.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How many objects a page of a list has: each of them may be as long as etcd takes, 1.5 MB, and kube has a page in memory
/// three times.
const PAGE: u32 = 4;
/// How many events may wait: each is of one object.
const WAITING: usize = 16;
/// The annotation of the bookmark that ends the first objects.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// An object, as far as it counts.
pub(crate) trait Object: Clone + DeserializeOwned + Send + 'static {
    /// The object's version: its resourceVersion.
    fn version(&self) -> &str;
}

/// The objects that are followed. An object that no longer has these fields is gone.
#[derive(Debug)]
pub(crate) struct Which {
    /// The path of their kind.
    pub(crate) path: String,
    /// The label that they have, if they are to have one.
    pub(crate) label: Option<&'static str>,
    /// The values of their fields, as a selector.
    pub(crate) fields: String,
}

/// An event about the objects, or the reason why the API server can't be asked.
pub(crate) type News<T> = Result<Event<T>, String>;

/// Follows objects for as long as somebody takes the news.
pub(crate) fn follow<T: Object>(client: Client, which: Which) -> mpsc::Receiver<News<T>> {
    let (news, taker) = mpsc::channel(WAITING);
    tokio::spawn(Follower { client, which, news, version: None, pages: false }.run());
    taker
}

struct Follower<T> {
    client: Client,
    which: Which,
    news: mpsc::Sender<News<T>>,
    /// The version after which a watch goes on, once the first objects are known.
    version: Option<String>,
    /// True if the server sends the first objects only in pages.
    pages: bool,
}

impl<T: Object> Follower<T> {
    /// Watches with pauses that grow as long as watches are short.
    async fn run(mut self) {
        let mut pauses = DefaultBackoff::default();
        while !self.news.is_closed() {
            match self.watch().await {
                Ok(()) => {}
                Err(Error::Api(status)) if status.code == 410 => self.version = None,
                // The server doesn't know the parameter (422), or an older one its combination with others (400).
                Err(Error::Api(status))
                    if [400, 422].contains(&status.code) && self.version.is_none() && !self.pages =>
                {
                    self.pages = true;
                    continue;
                }
                Err(error) => self.tell(Err(api::words(&error))).await,
            }
            sleep(pauses.next().unwrap_or(LONGEST_PAUSE)).await;
        }
    }

    /// Watches once, and reads the first objects if they aren't known.
    async fn watch(&mut self) -> Result<(), Error> {
        if self.version.is_none() && self.pages {
            self.version = Some(self.list().await?);
        }
        let mut parameters = WatchParams::default().fields(&self.which.fields).timeout(WATCH);
        parameters.label_selector = self.which.label.map(str::to_owned);
        let mut are_first = self.version.is_none();
        parameters.send_initial_events = are_first;
        let request = Request::new(&self.which.path).watch(&parameters, self.version.as_deref().unwrap_or("0"));
        let request = request.map_err(Error::BuildRequest)?;
        let events = self.client.request_events::<T>(request);
        let mut events = pin!(timeout(LIST_PATIENCE, events).await.map_err(|_| late(LIST_PATIENCE))??);
        if are_first {
            self.tell(Ok(Event::Init)).await;
        }
        let patience = Duration::from_secs(WATCH.into()) + WATCH_GRACE;
        while let Some(event) = timeout(patience, events.try_next()).await.map_err(|_| late(patience))?? {
            let (version, event) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let version = object.version().to_owned();
                    (version, Some(if are_first { Event::InitApply(object) } else { Event::Apply(object) }))
                }
                WatchEvent::Deleted(object) => (object.version().to_owned(), Some(Event::Delete(object))),
                WatchEvent::Bookmark(bookmark) => {
                    let ends = are_first && bookmark.metadata.annotations.contains_key(INITIAL_END);
                    are_first &= !ends;
                    (bookmark.metadata.resource_version, ends.then_some(Event::InitDone))
                }
                WatchEvent::Error(status) => return Err(Error::Api(status)),
            };
            if !are_first {
                self.version = Some(version);
            }
            if let Some(event) = event {
                self.tell(Ok(event)).await;
            }
        }
        Ok(())
    }

    /// Reads the first objects in pages; the version of all of them together.
    async fn list(&self) -> Result<String, Error> {
        let mut parameters = ListParams::default().fields(&self.which.fields).limit(PAGE);
        parameters.label_selector = self.which.label.map(str::to_owned);
        self.tell(Ok(Event::Init)).await;
        loop {
            let request = Request::new(&self.which.path).list(&parameters).map_err(Error::BuildRequest)?;
            let page = self.client.request::<ObjectList<T>>(request);
            let page = timeout(LIST_PATIENCE, page).await.map_err(|_| late(LIST_PATIENCE))??;
            for object in page.items {
                self.tell(Ok(Event::InitApply(object))).await;
            }
            parameters.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if parameters.continue_token.is_none() {
                self.tell(Ok(Event::InitDone)).await;
                return Ok(page.metadata.resource_version.unwrap_or_default());
            }
        }
    }

    /// Without a taker, nothing is said.
    async fn tell(&self, news: News<T>) {
        let _ = self.news.send(news).await;
    }
}

fn late(patience: Duration) -> Error {
    let reason = format!("it took longer than {} s", patience.as_secs());
    Error::Service(std::io::Error::new(std::io::ErrorKind::TimedOut, reason).into())
}
