//! The agent as a process: on folders that stand for a node's, with others that write there too.

mod access;
mod admin;
mod api_server;
mod chaos;
mod cluster;
mod deploy;
mod helm;
mod leave;
mod log;
mod netns;
mod node;
mod nri;
mod refused;
mod rights;
mod stay;
mod tell;
mod upstream;
mod watch;
