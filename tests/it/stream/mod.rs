mod processor;
