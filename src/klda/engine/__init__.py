"""The mathematics: feature maps, the model, its solution, answers; nothing about files or texts.

The values, in the order in which data flows: `feature_map.FeatureMap`, `model.Model`,
`solution.Solution`, `solution.Answers`. `engine.Engine` holds a model and its solution.
"""
