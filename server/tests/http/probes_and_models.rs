//! Probes, and the list in which every client finds its field.

use serde_json::json;

use crate::wire_client::{always, settled, start};

#[tokio::test]
async fn the_probes_answer() {
    let server = start(always("ok")).await;
    assert_eq!(server.get("/health").await.json(), json!({"status": "ok"}));
    assert_eq!(server.get("/ready").await.json(), json!({"status": "ready", "running": 0, "waiting": 0}));
    assert_eq!(server.get("/version").await.json()["name"], "plimsoll");
    assert_eq!(server.request("HEAD", "/health", &[], b"").await.status, 200);
}

#[tokio::test]
async fn the_list_of_models_is_the_union_of_what_clients_read() {
    let server = start(always("ok")).await;
    let list = server.get("/v1/models?client_version=0.171.0").await.json();
    let one = server.get("/v1/models/scripted").await.json();
    assert_eq!(list["data"][0], one);
    for field in [
        "slug",
        "display_name",
        "supported_reasoning_levels",
        "shell_type",
        "visibility",
        "supported_in_api",
        "priority",
        "support_verbosity",
        "truncation_policy",
        "model_messages",
        "experimental_supported_tools",
    ] {
        assert!(list["models"][0].get(field).is_some(), "Codex refuses a list without {field}");
    }
    insta::assert_json_snapshot!(settled(list));
}
