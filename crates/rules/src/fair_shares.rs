//! Fair shares from code.

use crate::builder::quoted;

/// How the clients of a fair rule share its allowance.
///
/// ```
/// use tollgate_core::{Limit, Rate, Span};
/// use tollgate_rules::{FairShares, RuleBuilder};
///
/// let shares = FairShares::per(["tenant"])
///     .weights("plan", [("free", 1), ("enterprise", 5)])
///     .lane("high", 60)
///     .lane("low", 40)
///     .lanes_by("priority");
/// let limit = Limit::token_bucket(100, Rate::new(100, Span::SECOND)?)?;
/// let rule = RuleBuilder::new("search", limit).fair(&shares).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "pass it to `RuleBuilder::fair`"]
pub struct FairShares {
    per: Vec<String>,
    weights: Option<(String, Vec<(String, u32)>)>,
    lanes_by: Option<String>,
    lanes: Vec<(String, u8)>,
    strict: Vec<String>,
    otherwise: Option<String>,
}

impl FairShares {
    /// Starts with clients that these attributes make. Each has the weight 1.
    pub fn per<N: Into<String>>(attributes: impl IntoIterator<Item = N>) -> FairShares {
        FairShares {
            per: attributes.into_iter().map(Into::into).collect(),
            weights: None,
            lanes_by: None,
            lanes: Vec::new(),
            strict: Vec::new(),
            otherwise: None,
        }
    }

    /// Gives clients a weight from 1 to 1000, by the value of `attribute`. Other clients keep the weight 1.
    pub fn weights<V: Into<String>>(
        mut self,
        attribute: impl Into<String>,
        weights: impl IntoIterator<Item = (V, u32)>,
    ) -> Self {
        let weights = weights
            .into_iter()
            .map(|(value, weight)| (value.into(), weight));
        self.weights = Some((attribute.into(), weights.collect()));
        self
    }

    /// Sets the attribute that chooses the lane of a request: the lane with the name of its value.
    pub fn lanes_by(mut self, attribute: impl Into<String>) -> Self {
        self.lanes_by = Some(attribute.into());
        self
    }

    /// Adds a lane with a share in percent. All lanes together have 100.
    pub fn lane(mut self, name: impl Into<String>, percent: u8) -> Self {
        self.lanes.push((name.into(), percent));
        self
    }

    /// Adds a lane that never gets more than its share, even if the others are idle.
    pub fn strict_lane(mut self, name: impl Into<String>, percent: u8) -> Self {
        let name = name.into();
        self.strict.push(name.clone());
        self.lane(name, percent)
    }

    /// Sets the lane of requests whose attribute names no lane. The default is the last lane.
    pub fn otherwise(mut self, lane: impl Into<String>) -> Self {
        self.otherwise = Some(lane.into());
        self
    }

    /// Writes the shares as the field `fair` of a rule.
    pub(crate) fn to_yaml(&self) -> String {
        let list = |texts: &[String]| {
            let texts: Vec<String> = texts.iter().map(|it| quoted(it)).collect();
            format!("[{}]", texts.join(", "))
        };
        let mut fields = vec![format!("per: {}", list(&self.per))];
        if let Some((by, weights)) = &self.weights {
            let weights = weights.iter();
            let weights = weights.map(|(value, weight)| format!("{}: {weight}", quoted(value)));
            let weights: Vec<String> = weights.collect();
            fields.push(format!(
                "weights: {{ {}: {{ {} }} }}",
                quoted(by),
                weights.join(", ")
            ));
        }
        let mut lanes = Vec::new();
        if let Some(by) = &self.lanes_by {
            lanes.push(format!("by: {}", quoted(by)));
        }
        if !self.lanes.is_empty() {
            let shares = self.lanes.iter();
            let shares = shares.map(|(name, percent)| format!("{}: {percent}%", quoted(name)));
            let shares: Vec<String> = shares.collect();
            lanes.push(format!("shares: {{ {} }}", shares.join(", ")));
        }
        if !self.strict.is_empty() {
            lanes.push(format!("strict: {}", list(&self.strict)));
        }
        if let Some(lane) = &self.otherwise {
            lanes.push(format!("otherwise: {}", quoted(lane)));
        }
        if !lanes.is_empty() {
            fields.push(format!("lanes: {{ {} }}", lanes.join(", ")));
        }
        format!("{{ {} }}", fields.join(", "))
    }
}
