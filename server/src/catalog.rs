//! What the server serves: models, and the names under which they are offered.
//!
//! A preset's name and the raw model's id are two names of one loaded model; they differ in budget and sampling. Owns
//! the lookup. Never loads anything.

use std::sync::Arc;

use plimsoll_models::preset::Fallback;
use plimsoll_runtime::budget::{Budget, Tokens};
use plimsoll_runtime::compaction::{Compactor, FaultPlan};
use plimsoll_runtime::engine::{EngineHandle, RequestIds, SamplingParams};

use serde_json::{Map, Value};

use crate::wire::error::ServerError;
use crate::wire::messages::Media;
use crate::wire::model_list::ListedModel;
use crate::wire::parameters::ParameterDefaults;
use plimsoll_runtime::model_text::ModelText;

/// A model that is loaded and running.
#[derive(Clone)]
pub struct LoadedModel {
    /// Its text side.
    pub text: Arc<dyn ModelText>,
    /// Its engine.
    pub engine: EngineHandle,
    /// The longest sequence the model was made for, in tokens.
    pub trained_window: u32,
}

/// A model under one of its names.
#[derive(Clone)]
pub struct ServedModel {
    /// Its id on the API.
    pub id: String,
    /// Its name for people.
    pub display_name: String,
    /// The model.
    pub model: LoadedModel,
    /// The window.
    pub budget: Arc<Budget>,
    /// What a request leaves out.
    pub sampling: SamplingParams,
    /// Variables of the chat template where a request does not set them.
    pub template_arguments: Map<String, Value>,
    /// What happens to pictures and files.
    pub media: Media,
    /// How its sessions are compacted.
    pub upkeep: Upkeep,
}

/// How the sessions of a served model are compacted.
#[derive(Clone, Debug, Default)]
pub struct Upkeep {
    /// Whether the server does so by itself, where the budget says.
    pub managed: bool,
    /// Whether a failure stops the session.
    pub guarded: bool,
    /// What fills a section of a summary that the model failed at.
    pub fallback: Fallback,
    /// Faults of a simulation.
    pub faults: FaultPlan,
}

impl ServedModel {
    /// Defaults and limits of request parameters.
    pub fn parameter_defaults(&self) -> ParameterDefaults {
        ParameterDefaults { sampling: self.sampling.clone(), vocab: self.model.text.vocab() }
    }

    /// The longest prompt that is admitted with a reply of one token. Found by asking the budget, so that what is
    /// advertised is what is enforced.
    pub fn longest_prompt(&self) -> u32 {
        match self.budget.admit(Tokens(u32::MAX), None, self.instruction()) {
            Err(overflow) => overflow.limit.0,
            Ok(_) => self.budget.window.0,
        }
    }

    /// Tokens of a summary's instruction that are held back beside the summary, where the server compacts by itself.
    pub fn instruction(&self) -> Tokens {
        let managed = self.upkeep.managed;
        Tokens(if managed { self.compactor(&RequestIds::default()).instruction_tokens() } else { 0 })
    }

    /// What compacts its sessions.
    pub fn compactor(&self, ids: &RequestIds) -> Compactor {
        Compactor {
            engine: self.model.engine.clone(),
            text: self.model.text.clone(),
            budget: self.budget.clone(),
            fallback: self.upkeep.fallback,
            guarded: self.upkeep.guarded,
            ids: ids.clone(),
            faults: self.upkeep.faults.clone(),
        }
    }

    /// Template variables of a request, completed by the preset's.
    pub fn complete_variables(&self, variables: &mut Map<String, Value>) {
        for (name, value) in &self.template_arguments {
            variables.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }

    /// As it is listed.
    pub fn listed(&self, created: u64) -> ListedModel {
        ListedModel {
            id: self.id.clone(),
            display_name: self.display_name.clone(),
            created,
            window: self.budget.window.0,
            max_input: self.longest_prompt(),
            max_output: self.budget.response.0,
            trained_window: self.model.trained_window,
            compaction: self.budget.compaction.0,
        }
    }
}

/// All names, and the engines behind them.
#[derive(Clone, Default)]
pub struct Catalog {
    models: Vec<ServedModel>,
    engines: Vec<EngineHandle>,
}

impl Catalog {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an engine and the names of its model. The first name of all is the default one; a name that is given
    /// twice means the first.
    #[must_use]
    pub fn with(mut self, engine: EngineHandle, names: impl IntoIterator<Item = ServedModel>) -> Self {
        self.engines.push(engine);
        for model in names {
            if !self.models.iter().any(|known| known.id == model.id) {
                self.models.push(model);
            }
        }
        self
    }

    /// All names, the default one first.
    pub fn models(&self) -> &[ServedModel] {
        &self.models
    }

    /// The model of that name.
    pub fn find(&self, id: &str) -> Result<&ServedModel, ServerError> {
        self.models.iter().find(|model| model.id == id).ok_or_else(|| ServerError::UnknownModel {
            model: id.to_owned(),
            known: self.models.iter().map(|model| model.id.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    /// The model that is meant where none is named.
    pub fn default_model(&self) -> Option<&ServedModel> {
        self.models.first()
    }

    /// Each engine once.
    pub fn engines(&self) -> &[EngineHandle] {
        &self.engines
    }
}
