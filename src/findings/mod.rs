//! What a user is told: how what was found differs from what is wanted, which config made it, and where a connection
//! goes.

pub mod difference;
pub mod explain;
pub mod finding;
pub mod neighbours;
pub mod proxy;
pub mod recognize;
pub mod user_namespaces;
